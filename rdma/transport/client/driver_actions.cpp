// SPDX-License-Identifier: BSD-3-Clause
// The executor of a session's machine: its actions with sockets, lanes and timers, and what paths
// and lanes report.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "rdma/transport/client/driver.hpp"
#include "rdma/transport/client/options.hpp"
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
    next_look_.cancel();
  } else {
    next_look_.set(std::max(Duration::zero(), next - now()), [this] { look_on_io(); });
  }
}

// ---- The race of the paths ---------------------------------------------------------------------

/// From any thread.
void ClientDriver::on_busy() {
  boost::asio::post(io_, [this] { watch_races_on_io(); });
}

void ClientDriver::watch_races_on_io() {
  calm_looks_ = 0;
  if (!closed_ && !std::exchange(watches_races_, true)) schedule_race_on_io();
}

void ClientDriver::schedule_race_on_io() {
  constexpr Duration kLook = std::chrono::milliseconds{50};
  next_race_.set(kLook, [this] { look_at_races_on_io(); });
}

/// A session that nobody uses is not looked at. Its next request has this thread look again, which
/// a session that is used all the time must not ask for again and again.
void ClientDriver::look_at_races_on_io() {
  constexpr unsigned kCalm = 20;
  if (const auto raced = lanes_.look_at_races()) {
    calm_looks_ = 0;
    feed_on_io({.kind = ClientEvent::Kind::raced, .raced = *raced});
  }
  if (closed_) return;
  watches_races_ = ++calm_looks_ <= kCalm || !lanes_.end_looks();
  if (watches_races_) schedule_race_on_io();
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
      attach_on_io(path);
      return watch_races_on_io();
    case Kind::came_up:
      return up_on_io();
    case Kind::drop:
      if (action.cause.kind != Cause::Kind::unresponsive) {
        return lose_on_io({path, action.generation}, action.cause);
      }
      // The path's heartbeat is on the stack, and may find that all its connections are dead.
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
      lanes_.allow(path, session_.path(path).accessible());
      return watch_races_on_io();  // requests may have gone that waited for the path
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

// ---- Paths that come and go --------------------------------------------------------------------

void ClientDriver::connect_on_io(unsigned index) {
  // Long enough for a slow server, short enough to find a path soon that has come back.
  constexpr Duration kPatience = std::chrono::seconds{2};
  const PathAddress& address = options_.paths[index];
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  paths_.start(
      index,
      std::make_shared<PathDriver>(
          reactor_, session_.path(index), connect_options(options_, address, patience),
          paths_.lookup(index, address.host), options_.session_name, options_.connect_timeout,
          *this, PathLife{.path = index, .generation = machine_.generation(index)}));
}

void ClientDriver::on_ready(PathLife life) {
  feed_on_io({.kind = ClientEvent::Kind::ready, .path = life.path});
}

void ClientDriver::on_lost(PathLife life, const Failure& failure) {
  lose_on_io(life, {failure.error, failure.text});
}

bool ClientDriver::on_heartbeat(PathLife life) {
  feed_on_io({.kind = ClientEvent::Kind::awake});
  const auto signs = lanes_.look_after(life.path, session_.misses_max(life.path));
  feed_on_io(
      {.kind = ClientEvent::Kind::heartbeat, .path = life.path, .lanes_live = signs.all_live});
  held_.look(now());
  return signs.heard;
}

void ClientDriver::on_latency(PathLife life, Duration latency) {
  if (options_.policy != PathPolicy::min_latency) return;
  lanes_.for_each([&](ClientLane& lane) { lane.set_latency(life.path, latency); });
}

void ClientDriver::on_access(PathLife life) {
  feed_on_io({.kind = ClientEvent::Kind::access, .path = life.path});
}

void ClientDriver::on_recall() {
  if (options_.recovery != nullptr) options_.recovery->on_recall();
}

/// From any thread.
void ClientDriver::on_broken(PathLife life, std::string why) {
  boost::asio::post(io_, [this, life, why = std::move(why)] {
    lose_on_io(life, {EIO, notices_.name_of_path(life.path) + ": " + why});
  });
}

/// Memory that a device does not take is copied.
void ClientDriver::attach_on_io(unsigned index) {
  const PathLife life{.path = index, .generation = machine_.generation(index)};
  lanes_.attach(life, paths_.at(index), [&](Connection& connection) {
    for (const Failure& refusal : memory_.introduce_to(connection)) {
      notices_.log(LogLevel::warning, notices_.name_of_path(index) + ": " + refusal.text);
    }
  });
}

void ClientDriver::lose_on_io(PathLife life, const Cause& cause) {
  ClientEvent::Traffic traffic;
  if (session_.at(life.path).state == PathState::connected) traffic = lanes_.traffic(life.path);
  feed_on_io({.kind = ClientEvent::Kind::lost,
              .path = life.path,
              .generation = life.generation,
              .cause = cause,
              .traffic = traffic});
}

// ---- Recovery ----------------------------------------------------------------------------------

void ClientDriver::recover_on_io(unsigned index) {
  const auto permit = lanes_.lend_permit(index);
  if (!permit) return feed_on_io({.kind = ClientEvent::Kind::no_permit, .path = index});
  recovery_ = std::make_unique<SessionRecovery>(
      *options_.recovery, paths_.at(index), *permit,
      [this] { boost::asio::post(io_, [this] { recovered_on_io(); }); });
  recovery_->start(index, session_.accepted().max_io_size, session_.at(index).by_order);
}

void ClientDriver::recovered_on_io() {
  if (closed_ || !recovery_) return;
  const auto recovery = std::move(recovery_);
  const int error = recovery->end();
  feed_on_io({.kind = ClientEvent::Kind::recovered,
              .path = recovery->path(),
              .cause = Cause{Cause::Kind::none, recovery->path(), error}});
}

}  // namespace rtrs
