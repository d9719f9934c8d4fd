// SPDX-License-Identifier: BSD-3-Clause
// Requests that wait because of a limit: of their session, then of their export. Each is checked
// again at its turn, as if it had just arrived.
#include <cerrno>
#include <utility>

#include "bridge/server/answer.hpp"
#include "bridge/server/io_context.hpp"

namespace rnbd {

/// False: it waits, and `again` is called with it later.
bool IoRequests::admit(rtrs::ServerRequest& request, Device& device, std::uint64_t bytes,
                       PacedHandler again) {
  IoContext& io = take_free_context();
  io.request = &request;
  io.device = &device;
  io.bytes = bytes;
  io.again = again;
  io.step = IoContext::Step::limit_of_session;
  if (!pass(io)) return false;
  give_back(io);
  return true;
}

/// False: it waits at one of the limits.
bool IoRequests::pass(IoContext& io) {
  Device& device = *io.device;
  if (io.step == IoContext::Step::limit_of_session && throttle_ != nullptr &&
      throttle_->is_limited() && !throttle_->admit(flow_, io, services_)) {
    ++device.waiting;
    return false;
  }
  io.step = IoContext::Step::limit_of_export;
  if (device.throttle == nullptr || !device.throttle->is_limited() ||
      device.throttle->admit(device.flow, io, services_)) {
    return true;
  }
  ++device.waiting;
  return false;
}

void IoRequests::on_turn(ThrottledRequest& request) {
  auto& io = static_cast<IoContext&>(request);
  io.owner->turn(io);
}

/// A device that closes waits for those that another reactor's timer has let go on.
void IoRequests::turn(IoContext& io) {
  Device& device = *io.device;
  rtrs::ServerRequest& request = *io.request;
  --device.waiting;
  if (device.closing) {
    give_back(io);
    finish(request, ENOTCONN);
    if (device.running + device.waiting == 0) close_(device);
    return;
  }
  const bool second = io.step == IoContext::Step::limit_of_session;
  io.step = IoContext::Step::limit_of_export;
  if (second && !pass(io)) return;
  const PacedHandler again = io.again;
  give_back(io);
  (this->*again)(request, Turn::come);
}

/// The answers of requests that wait are not needed any more.
void IoRequests::end_waiting(Device& device) {
  const auto end = [&](Throttle* throttle, ThrottleFlow& flow) {
    if (throttle == nullptr) return;
    ThrottledRequest* next = throttle->take_back(flow, [&](const ThrottledRequest& each) {
      return static_cast<const IoContext&>(each).device == &device;
    });
    while (next != nullptr) {
      auto& io = static_cast<IoContext&>(*std::exchange(next, next->next));
      rtrs::ServerRequest& request = *io.request;
      --device.waiting;
      give_back(io);
      finish(request, ENOTCONN);
    }
  };
  end(throttle_.get(), flow_);
  end(device.throttle.get(), device.flow);
}

}  // namespace rnbd
