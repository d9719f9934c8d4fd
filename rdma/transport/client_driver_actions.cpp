// SPDX-License-Identifier: BSD-3-Clause
// The executor of a session's machine: its actions with sockets, lanes and timers.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {

void ClientDriver::feed_on_io(const ClientEvent& event) {
  machine_.handle(event, now());
  perform_all_on_io();
}

void ClientDriver::perform_all_on_io() {
  if (performing_) return;
  performing_ = true;
  try {
    while (const auto action = machine_.poll_action()) {
      if (!closed_) perform_on_io(*action);
    }
  } catch (...) {
    performing_ = false;
    throw;
  }
  performing_ = false;
  schedule_look_on_io();
}

void ClientDriver::look_on_io() {
  machine_.handle_timeout(now());
  perform_all_on_io();
}

void ClientDriver::schedule_look_on_io() {
  const Instant next = machine_.next_deadline();
  if (next == Instant::max()) {
    look_timer_.cancel();
    return;
  }
  look_timer_.expires_after(std::max(Duration::zero(), next - now()));
  look_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) look_on_io();
  });
}

void ClientDriver::perform_on_io(const ClientAction& action) {
  using Kind = ClientAction::Kind;
  const unsigned path = action.path;
  switch (action.kind) {
    case Kind::connect:
      return connect_on_io(path);
    case Kind::make_lanes:
      return create_lanes_on_io(path);
    case Kind::attach:
      return attach_on_io(path);
    case Kind::came_up:
      return up_on_io();
    case Kind::drop:
      if (action.cause.kind != Cause::Kind::unresponsive) {
        return lose_on_io(path, action.life, action.cause);
      }
      // Its heartbeat is on the stack, and may find that all its connections are dead.
      return boost::asio::post(io_, [this, path, life = action.life, cause = action.cause] {
        lose_on_io(path, life, cause);
      });
    case Kind::close:
      return close_path_on_io(path);
    case Kind::detach:
      return detach_on_io(path);
    case Kind::attempt_failed:
      return first_attempt_failed_on_io(path, action.cause);
    case Kind::recover:
      return recover_on_io(path);
    case Kind::break_recovery:
      renewal_->broken = true;
      return renewal_->lane->shut_down(EIO);
    case Kind::acknowledge:
      if (paths_[path].driver) paths_[path].driver->core().acknowledge_access();
      return;
    case Kind::say_goodbye:  // it closes the path, or the attempt takes too long
      paths_[path].driver->core().say_goodbye();
      return;
    case Kind::release:
      if (!is_bound_on_io(path)) feed_on_io({.kind = ClientEvent::Kind::released, .path = path});
      return;
    case Kind::run_background_jobs:
      return run_background_job_on_io();
    case Kind::notify:
      return report(action.notice);
    case Kind::end:
      return fail_on_io(action.cause);
    default:
      return perform_on_lanes_on_io(action);
  }
}

void ClientDriver::perform_on_lanes_on_io(const ClientAction& action) {
  using Kind = ClientAction::Kind;
  const unsigned path = action.path;
  switch (action.kind) {
    case Kind::use:
      return for_each_lane([&](ClientLane& lane) { lane.use(action.paths, options_.policy); });
    case Kind::allow: {
      const bool accessible = session_.path(path).accessible();
      return for_each_lane([&](ClientLane& lane) { lane.allow(path, accessible); });
    }
    case Kind::renew:
      return for_each_lane([](ClientLane& lane) { lane.renew(); });
    case Kind::put_off:
      for (auto& lane : lanes_) lane->with_lane([&](ClientLane& l) { l.note_pause(action.pause); });
      return;
    case Kind::fail_waiting:
      return for_each_lane(
          [this](ClientLane& lane) { lane.fail_pending(error_without_path(lane)); });
    case Kind::fail_writes:
      return give_up_changes_on_io(path);
    case Kind::fail_overdue:
      return fail_overdue_on_io();
    case Kind::forget:
      return for_each_lane([path](ClientLane& lane) { lane.forget(path); });
    default:
      return;
  }
}

}  // namespace rtrs
