// SPDX-License-Identifier: BSD-3-Clause
// The executor of a session's machine: its actions with sockets, lanes and timers.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "rdma/transport/client/driver.hpp"
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
      return lanes_.create(session_.path(path).slots_per_lane());
    case Kind::attach:
      return attach_on_io(path);
    case Kind::came_up:
      return up_on_io();
    case Kind::drop:
      if (action.cause.kind != Cause::Kind::unresponsive) {
        return lose_on_io({path, action.generation}, action.cause);
      }
      // Its heartbeat is on the stack, and may find that all its connections are dead.
      return boost::asio::post(io_, [this, life = PathLife{path, action.generation},
                                     cause = action.cause] { lose_on_io(life, cause); });
    case Kind::close:
      paths_.close(path);
      return lanes_.log_statistics(path);
    case Kind::detach:
      lanes_.detach(path);
      return feed_on_io({.kind = ClientEvent::Kind::busy});
    case Kind::attempt_failed:
      if (auto failure = attempts_.failed(path, action.cause, now())) fail_on_io(*failure);
      return;
    case Kind::recover:
      return recover_on_io(path);
    case Kind::break_recovery:
      return recovery_->break_off();
    case Kind::allow:
      return lanes_.allow(path, session_.path(path).accessible());
    case Kind::acknowledge:
      if (PathDriver* driver = paths_.find(path)) driver->core().acknowledge_access();
      return;
    case Kind::say_goodbye:  // it closes the path, or the attempt takes too long
      paths_.at(path).core().say_goodbye();
      return;
    case Kind::release:
      if (!lanes_.bound(path)) feed_on_io({.kind = ClientEvent::Kind::released, .path = path});
      return;
    case Kind::fail_writes:
      return lanes_.fail_writes(path);
    case Kind::fail_overdue:
      if (const auto mute = lanes_.fail_overdue()) {
        notices_.report({.kind = Notice::Kind::requests_overdue}, now());
        feed_on_io({.kind = ClientEvent::Kind::overdue, .paths = *mute});
      }
      return;
    case Kind::run_background_jobs:
      return jobs_.run();
    case Kind::notify:
      return notices_.report(action.notice, now());
    case Kind::end:
      return fail_on_io(notices_.failure_of(action.cause));
    default:
      return lanes_.perform(action);
  }
}

}  // namespace rtrs
