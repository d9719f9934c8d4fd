// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/open_orders.hpp"

#include <cerrno>

#include "bridge/client/control.hpp"

namespace rnbd {

bool OpenOrders::enter(const rtrs::SessionLimits& limits) {
  if (era_.number != 0) return false;
  era_.limits = limits;
  return true;
}

void OpenOrders::begin_recovery(const rtrs::SessionLimits& limits, bool forgets) {
  end_attempt();
  ++era_.number;
  era_.limits = limits;
  certain_ = forgets && !cut_short_;
  cut_short_ = true;  // until it succeeds
}

wire::OpenOrder OpenOrders::begin_again() {
  if (!numbered(era_.limits)) return {};
  const wire::OpenOrder order = begin();
  attempt_.push_back(order.number);
  return order;
}

void OpenOrders::end_recovery(bool success) {
  end_attempt();
  if (success) cut_short_ = false;
}

void OpenOrders::end_attempt() {
  for (const std::uint32_t number : attempt_) end(number);
  attempt_.clear();
}

wire::OpenOrder OpenOrders::begin(std::uint32_t again) {
  wire::OpenOrder order;
  order.number = unanswered_.contains(again) ? again : next_++;
  unanswered_.insert(order.number);
  order.settled = *unanswered_.begin();
  return order;
}

std::unique_ptr<rtrs::Operation> OpenOrders::close(const OpenedDevice& device,
                                                   DeviceHandle& handle) const {
  if (!numbered(era_.limits)) {
    // Its id may belong to another device now.
    if (device.half_closed) {
      return std::make_unique<CloseByName>(device.name, device.access, handle);
    }
    wire::Close close;
    close.header = wire::header_of(wire::MessageType::close);
    return std::make_unique<ControlOperation>(handle, close);
  }
  wire::NumberedClose close;
  close.header = wire::header_of(wire::MessageType::close);
  close.order.number = device.open_number;
  close.order.settled = unanswered_.empty() ? next_ : *unanswered_.begin();
  return std::make_unique<ControlOperation>(handle, close);
}

/// Any other error is an answer.
bool OpenOrders::closed(int error) { return error != EINTR && error != EIO; }

Renewal OpenOrders::renewal(bool is_open, bool is_closing, bool in_use, bool certain,
                            const rtrs::SessionLimits& limits) {
  const bool left = is_open && !in_use;
  // Left open for the sake of a server that has closed it now.
  if (left && certain) return Renewal::forget;
  if (is_open && in_use) return Renewal::open;
  if (certain || (!left && !is_closing)) return Renewal::none;
  return numbered(limits) ? Renewal::open_to_close : Renewal::close_by_name;
}

}  // namespace rnbd
