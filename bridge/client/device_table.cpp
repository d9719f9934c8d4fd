// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/device_table.hpp"

#include <algorithm>
#include <cerrno>

#include "bridge/client/control.hpp"

namespace rnbd {
namespace {

using State = ClientDevice::State;

bool shareable(wire::AccessMode opened, wire::AccessMode asked) {
  return asked == opened || asked == wire::AccessMode::read_only;
}

/// True if its users have been told of a record of the storage's writers.
bool knows_a_writer(const DeviceTable::Device& device) {
  return device->users > 0 && device->witness.generation >> 32 != 0;
}

}  // namespace

void ClientDevice::claim_granted(const Witness& seen, const wire::DeviceInfoResponse& told) {
  if (claimed) return;
  claimed = true;
  claimed_on = seen;
  witness = witness_of(told);
}

void ClientDevice::look_again(const wire::DeviceInfoResponse& told) {
  grow(geometry, told.size);
  geometry.witness.sight = told.sight;
  geometry.witness.writer_serial = told.writer_serial;
  witness.generation = told.generation;
  geometry.in_use = (told.flags & wire::kDeviceInUse) != 0;
  geometry.shrunk = (told.flags & wire::kDeviceShrunk) != 0;
}

DeviceTable::Device DeviceTable::find(const std::string& name) const {
  const auto at = devices_.find(name);
  return at == devices_.end() ? nullptr : at->second;
}

/// Unless the client has been through a recovery already.
void DeviceTable::enter(const rtrs::SessionLimits& limits) {
  if (orders_.enter(limits)) volatile_epoch_.enter(limits.volatile_epoch);
}

void DeviceTable::forget(const ClientDevice& device) {
  const auto at = devices_.find(device.name);
  if (at != devices_.end() && at->second.get() == &device) devices_.erase(at);
}

// ---- Opening ------------------------------------------------------------------------------------

DeviceTable::Joined DeviceTable::join(const std::string& name, const OpenOptions& options) {
  Device device = find(name);
  if (!device) {
    device = make_();
    device->name = name;
    device->options = options;
    devices_.emplace(name, device);
    return {Join::open, std::move(device)};
  }
  if (device->state != State::open) return {Join::wait, std::move(device)};
  const bool fits = shareable(device->options.access, options.access);
  if (!fits && device->geometry.read_only) return {Join::read_only, std::move(device)};
  if (device->users > 0 && !fits) return {Join::busy, std::move(device)};
  if (device->users > 0 || (fits && device->fit_for_next())) {
    ++device->users;
    return {Join::share, std::move(device)};
  }
  // It was left open with cancelled requests. The server must finish them before the next use.
  device->state = State::closing;
  return {Join::close, std::move(device)};
}

std::unique_ptr<rtrs::Operation> DeviceTable::open(ClientDevice& device,
                                                   rtrs::MutableBytes answer) {
  const rtrs::SessionLimits& limits = era().limits;
  wire::Open message = wire::encode_open(device.name, device.options.access);
  device.claimed = !device.options.unclaimed || (limits.features & wire::kFeatureClaims) == 0;
  if (!device.claimed) message.flags = wire::kOpenUnclaimed;
  device.open_era = era().number;
  if (!numbered()) return std::make_unique<ControlOperation>(message, answer);
  const wire::NumberedOpen with_number{message, orders_.begin(device.open_number)};
  device.open_number = with_number.order.number;
  return std::make_unique<ControlOperation>(with_number, answer);
}

void DeviceTable::open_ended(const ClientDevice& device, bool final) {
  if (final || !asks_again(device)) orders_.end(device.open_number);
}

std::optional<rtrs::SessionLimits> DeviceTable::take_id(ClientDevice& device, std::uint32_t id) {
  if (asks_again(device)) return std::nullopt;
  device.handle.id = id;
  return era().limits;
}

void DeviceTable::opened(ClientDevice& device, const DeviceGeometry& geometry) {
  device.geometry = geometry;
  device.witness = geometry.witness;
  device.state = State::open;
}

bool DeviceTable::not_opened(ClientDevice& device, bool answered) {
  if (answered || !numbered()) {
    forget(device);
    return false;
  }
  device.users = 0;
  device.state = State::closing;
  return true;
}

// ---- Closing ------------------------------------------------------------------------------------

bool DeviceTable::release(ClientDevice& device, bool stuck) {
  if (--device.users > 0 || !device.loss.empty()) return false;
  // After a change the next user would have to wait anyway.
  if (stuck && device.fit_for_next()) return false;
  device.state = State::closing;
  return true;
}

/// Until no request to it is in flight, a CLOSE would only take a permit from OPENs.
DeviceTable::Device DeviceTable::next_left() {
  for (const auto& [name, device] : devices_) {
    const bool left = device->state == State::open && device->users == 0;
    if (!left || device->handle.unresolved->any()) continue;
    device->state = State::closing;
    return device;
  }
  return nullptr;
}

std::unique_ptr<rtrs::Operation> DeviceTable::close(ClientDevice& device) {
  device.close_era = era().number;
  const OpenedDevice opened{device.name, device.options.access, device.open_number,
                            device.half_closed};
  return orders_.close(opened, device.handle);
}

void DeviceTable::close_ended(ClientDevice& device, int error) {
  if (OpenOrders::closed(error)) return forget(device);
  device.state = State::open;
  device.half_closed = true;
}

// ---- Recovery -----------------------------------------------------------------------------------

Renewal DeviceTable::renewal_of(const ClientDevice& device) const {
  return OpenOrders::renewal(device.state == State::open, device.state == State::closing,
                             device.users > 0, orders_.certain() || device.left_out, era().limits);
}

std::vector<ReopenDevice> DeviceTable::begin_recovery(const rtrs::SessionLimits& limits,
                                                      bool forgets,
                                                      RefusalPatience::TimePoint now) {
  orders_.begin_recovery(limits, forgets);
  reopening_.clear();
  std::vector<ReopenDevice> again;
  for (const auto& [name, device] : devices_) {
    const Renewal fate = renewal_of(*device);
    const bool leaving = fate == Renewal::open_to_close;
    if (fate == Renewal::forget) device->left_out = true;
    // If the recovery fails, the session before may go on, and have it open.
    if (leaving || fate == Renewal::close_by_name || fate == Renewal::forget)
      device->half_closed = true;
    // A caller that opens a device sees the new era and asks again.
    if (leaving || fate == Renewal::open) {
      again.push_back({device->name, device->options, device->geometry, leaving});
      again.back().options.unclaimed = !device->claimed;
      again.back().expected.witness = device->witness;
      again.back().patient = device->patience.lasts(now);
      again.back().order = orders_.begin_again();
      reopening_.push_back(device);
    }
  }
  return again;
}

DeviceTable::Device DeviceTable::leave_behind(const Device& device, std::uint32_t id) {
  Device left = make_();
  left->name = device->name;
  left->options = device->options;
  left->state = device->state;
  left->users = 0;
  left->half_closed = device->half_closed;
  left->open_number = device->open_number;
  left->claimed = device->claimed;
  left->geometry = device->geometry;
  left->witness = device->witness;
  left->handle.id = id;
  devices_.at(device->name) = left;
  std::ranges::replace(reopening_, device, left);
  return left;
}

/// A device that the server has open now is closed before the next OPEN of it, like all unused
/// ones.
void DeviceTable::lose(const Device& device, const ReopenedDevice& reopened) {
  device->loss = reopened.loss;
  device->handle.id = kNoDevice;
  if (reopened.id == kNoDevice) return forget(*device);
  leave_behind(device, reopened.id)->half_closed = true;
}

std::vector<DeviceTable::Device> DeviceTable::lose(const std::vector<ReopenedDevice>& reopened,
                                                   bool goes_on) {
  std::vector<Device> lost;
  const bool believed = goes_on || era().limits.any_server ||
                        std::ranges::any_of(reopened, &ReopenedDevice::remembered);
  // The server may be a clone, whose word does not count.
  if (!believed && std::ranges::any_of(reopened, &ReopenedDevice::outdated)) return lost;
  const auto unjudged = reopening_.begin() + static_cast<std::ptrdiff_t>(reopened.size());
  const bool may_be_clone = !believed && std::any_of(unjudged, reopening_.end(), knows_a_writer);
  for (std::size_t i = 0; i < reopened.size(); ++i) {
    const Device device = reopening_[i];
    if (!reopened[i].is_lost(device->users > 0, goes_on)) continue;
    // The right server says so again, but not after a restart what it keeps in memory only.
    if (may_be_clone && (reopened[i].id == kNoDevice || knows_a_writer(device))) continue;
    lose(device, reopened[i]);
    lost.push_back(device);
  }
  return lost;
}

void DeviceTable::end_recovery(bool success) {
  orders_.end_recovery(success);
  reopening_.clear();
}

DeviceTable::Recovered DeviceTable::recovered(const std::vector<ReopenedDevice>& reopened) {
  // Those that are being opened or closed are not open now. The others have their ids at once,
  // because requests look at them.
  const auto reopens = [this](const Device& device) {
    return std::ranges::find(reopening_, device) != reopening_.end();
  };
  for (const auto& [name, device] : devices_) {
    if (!reopens(device)) device->handle.id = kNoDevice;
  }
  std::erase_if(devices_, [&](const auto& entry) {
    return !reopens(entry.second) && renewal_of(*entry.second) == Renewal::forget;
  });
  Recovered outcome;
  outcome.lost = lose(reopened, /*goes_on=*/true);
  const bool restarted = volatile_epoch_.enter(era().limits.volatile_epoch);
  for (std::size_t i = 0; i < reopening_.size(); ++i) {
    ClientDevice& device = *reopening_[i];
    device.patience = {};
    if (!device.loss.empty()) continue;
    device.handle.id = reopened[i].id;
    const bool storage_was_lost = device.witness.storage_life != reopened[i].witness.storage_life;
    device.witness = reopened[i].witness;
    // Its users have left meanwhile, and it must not get new ones.
    if (!reopened[i].loss.empty()) device.half_closed = true;
    if ((restarted || storage_was_lost) && device.handle.unflushed.lose()) {
      outcome.unflushed.push_back({reopening_[i], restarted});
    }
  }
  end_recovery(/*success=*/true);
  return outcome;
}

std::vector<DeviceTable::Device> DeviceTable::refused(const std::vector<ReopenedDevice>& reopened,
                                                      bool others_wait,
                                                      RefusalPatience::TimePoint now) {
  std::vector<Device> lost = lose(reopened, /*goes_on=*/false);
  for (std::size_t i = 0; i < reopened.size(); ++i) {
    reopening_[i]->patience.note(reopened[i].refusal != 0 && others_wait, now);
  }
  end_recovery(/*success=*/false);
  return lost;
}

std::vector<DeviceTable::Device> DeviceTable::cut_short(
    const std::vector<ReopenedDevice>& reopened) {
  std::vector<Device> lost = lose(reopened, /*goes_on=*/false);
  end_recovery(/*success=*/false);
  return lost;
}

// ---- Orders -------------------------------------------------------------------------------------

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
