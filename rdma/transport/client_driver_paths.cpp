// SPDX-License-Identifier: BSD-3-Clause
// Paths that come and go, and what becomes of the session then.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/resolve.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

std::optional<TlsKeys> keys_of(const ClientOptions& options) {
  if (options.tls == TlsMode::off) return std::nullopt;
  return options.tls_keys;
}

/// As long as a server, its host, its network, our own or a name server is not there yet.
bool may_come_yet(int error) {
  constexpr int kAbsent[] = {ECONNREFUSED, ECONNRESET,    EHOSTUNREACH, ENETUNREACH,
                             ENETDOWN,     EADDRNOTAVAIL, ETIMEDOUT};
  return std::ranges::find(kAbsent, error) != std::end(kAbsent);
}

}  // namespace

void ClientDriver::for_each_lane(const std::function<void(ClientLane&)>& function) {
  for (auto& lane : lanes_) lane->with_lane(function);
  if (!control_lane_) return;
  function(*control_lane_);
  flush_control_on_io();
}

void ClientDriver::flush_control_on_io() {
  for (Path& path : paths_) {
    if (path.driver) path.driver->flush();
  }
}

ConnectOptions ClientDriver::connect_options(const PathAddress& address, Duration patience) const {
  return {.address = address,
          .addresses = {},
          .header_digest = options_.header_digest,
          .data_digest = options_.data_digest,
          .patience = patience,
          .tls_keys = keys_of(options_),
          .tls = nullptr,
          .auth_keys = options_.auth_keys,
          .log = options_.log};
}

// ---- A path comes ------------------------------------------------------------------------------

void ClientDriver::connect_on_io(unsigned index) {
  // Long enough for a slow server, short enough to find a path soon that has come back.
  constexpr Duration kPatience = std::chrono::seconds{2};
  Path& path = paths_[index];
  if (!path.lookup) path.lookup = std::make_shared<HostLookup>(options_.paths[index].host);
  const unsigned life = ++path.life;
  path.held = false;
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  ClientPathHooks hooks;
  hooks.ready = [this, index] { ready_on_io(index); };
  hooks.lost = [this, index, life](const Failure& failure) {
    lose_on_io(index, life, {failure.error, failure.text});
  };
  hooks.traffic = [this, index] { return heard_on_io(index); };
  hooks.latency = [this, index](Duration latency) {
    if (options_.policy != PathPolicy::min_latency) return;
    for_each_lane([&](ClientLane& lane) { lane.set_latency(index, latency); });
  };
  hooks.access = [this, index] { access_changed_on_io(index); };
  hooks.flush_all = [this] { flush_control_on_io(); };
  path.driver = std::make_shared<PathDriver>(
      io_, session_.begin(index), connect_options(options_.paths[index], patience), path.lookup,
      options_.session_name, options_.connect_timeout, std::move(hooks));
  path.driver->start();
}

bool ClientDriver::heard_on_io(unsigned index) {
  note_pause_on_io();
  bool heard = false;
  const unsigned misses_max = session_.misses_max(index);
  bool lives = session_.path(index).control_silence() <= misses_max;
  for (auto& lane : lanes_) {
    lane->service();
    heard |= lane->heard(index);
    lives &= lane->probe(index, misses_max);
  }
  if (lives) {
    session_.lives(index, now());
  } else {
    give_up_path_on_io(index);
  }
  fail_overdue_on_io();
  check_leaving_on_io(index);
  report_held_opens_on_io();
  report_held_writes_on_io();
  return heard;
}

/// Later: its heartbeat is on the stack.
void ClientDriver::give_up_path_on_io(unsigned index) {
  session_.looks_dead(index, now());
  asio::post(io_, [this, index, life = paths_[index].life] {
    lose_on_io(index, life, Cause{Cause::Kind::unresponsive, index});
  });
}

void ClientDriver::ready_on_io(unsigned index) {
  using Welcome = ClientSession::Welcome;
  Path& path = paths_[index];
  Cause cause{Cause::Kind::none, index};
  switch (session_.judge(index)) {
    case Welcome::first:
      create_lanes_on_io(index);
      join_on_io(index);
      return up_on_io();
    case Welcome::joined:
      if (renewal_) break;
      return join_on_io(index);
    case Welcome::renewed:
      if (renewal_) break;
      return renew_on_io(index);
    case Welcome::left:
      report({.kind = Notice::Kind::path_left, .path = index});
      path.driver->core().say_goodbye();  // and closes the path, or the attempt takes too long
      return;
    case Welcome::stranger:
      cause.kind = Cause::Kind::other_session;
      return refuse_on_io(index, cause);
    case Welcome::changed:
      cause.kind = Cause::Kind::other_limits;
      cause.had = session_.accepted();
      cause.has = session_.path(index).accepted();
      return fail_on_io(cause);
    case Welcome::foreign:
      cause.kind = Cause::Kind::other_server;
      cause.server = session_.path(index).accepted().extension.server_id;
      cause.wanted = session_.server_id();
      return refuse_on_io(index, cause);
    case Welcome::unfit:
      cause.kind = Cause::Kind::no_extension;
      return refuse_on_io(index, cause);
  }
  path.held = true;
}

void ClientDriver::create_lanes_on_io(unsigned index) {
  for (ChangeBarrier* barrier : {&barrier_, &control_barrier_}) {
    barrier->on_open = [this, barrier] {
      asio::post(io_, [this, barrier] {
        if (closed_) return;
        if (!barrier->closed()) barrier->refuse(0);
        for_each_lane([](ClientLane& lane) { lane.resume(); });
        run_errand_on_io();  // to close what could not be closed
      });
    };
  }
  const auto slots = session_.path(index).slots_per_lane();
  control_lane_ = std::make_unique<ClientLane>(0, slots[0], &control_barrier_);
  control_lane_->keep_order();
  std::uint16_t first = slots[0];
  for (std::uint16_t cid = 1; cid < slots.size() && slots[cid] > 0; ++cid) {
    lanes_.push_back(std::make_unique<LaneDriver>(
        first, slots[cid], &barrier_, &control_barrier_, options_.spin,
        [this](unsigned path, unsigned life, std::string why) {
          asio::post(io_, [this, path, life, why = std::move(why)] {
            lose_on_io(path, life, {EIO, notices_.name_of_path(path) + ": " + why});
          });
        }));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
}

void ClientDriver::join_on_io(unsigned index) {
  Path& path = paths_[index];
  ClientPath& core = path.driver->core();
  session_.connected(index, now());
  core.set_control_handler(&control_lane_->handler(index));
  core.attach(*control_lane_, index, 0, path.driver->control());
  for (std::uint16_t cid = 1; cid <= lanes_.size(); ++cid) {
    auto connection = path.driver->take(cid);
    register_all_on_io(index, *connection);
    lanes_[cid - 1U]->attach(index, path.life, std::move(connection),
                             [&](ClientLane& lane, QueuePair& queue_pair) {
                               core.attach(lane, index, cid, queue_pair);
                             });
  }
  path.driver->flush();
  apply_use_on_io();
  schedule_look_on_io();
  report({.kind = Notice::Kind::path_up, .path = index});
  if (core.access() != wire::PathAccess::optimized) {
    report({.kind = Notice::Kind::path_better, .path = index, .access = core.access()});
  }
  run_errand_on_io();
  check_leaving_on_io(index);
}

void ClientDriver::access_changed_on_io(unsigned index) {
  if (session_.state(index) != PathState::connected) return;  // join_on_io() looks at it
  const bool worse = session_.access_changed(index, now());
  report({.kind = worse ? Notice::Kind::path_worse : Notice::Kind::path_better,
          .path = index,
          .access = session_.path(index).access()});
  const bool accessible = session_.path(index).accessible();
  for_each_lane([&](ClientLane& lane) { lane.allow(index, accessible); });
  apply_use_on_io();
  schedule_look_on_io();
}

void ClientDriver::run_errand_on_io() {
  if (closed_ || errand_ || options_.keeper == nullptr || control_lane_->slot_count() == 0) return;
  errand_ = options_.keeper->errand();
  if (!errand_) return;
  errand_since_ = now();
  errand_->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        asio::post(self.io_, [&self] { self.errand_ended_on_io(); });
      },
      this);
  errand_->start(*control_lane_);
  flush_control_on_io();
}

void ClientDriver::errand_ended_on_io() {
  const auto errand = std::move(errand_);
  options_.keeper->errand_ended(*errand);
  if (errand->error() != EIO) run_errand_on_io();  // otherwise later: it may be over at once again
}

// ---- A path goes -------------------------------------------------------------------------------

void ClientDriver::lose_on_io(unsigned index, unsigned life, const Cause& cause) {
  Path& path = paths_[index];
  if (closed_ || life != path.life || !path.driver) return;
  const bool was_connected = session_.state(index) == PathState::connected;
  note_pause_on_io();
  path.driver->close();
  path.driver.reset();
  path.held = false;
  if (renewal_ && renewal_->path == index && !std::exchange(renewal_->broken, true)) {
    renewal_->lane->shut_down(EIO);
  }
  const bool in_vain = was_connected && in_vain_on_io(index);
  if (was_connected && !cause.by_command() && lives_in_part_on_io(index)) distrust_on_io(index);
  report_statistics(index);
  session_.lost(index, now(), cause, in_vain);
  if (session_.was_up()) {
    report_end(index, was_connected, cause);
    apply_use_on_io();  // for what goes over another path at once
  }
  for (auto& lane : lanes_) lane->detach(index);
  if (control_lane_) control_lane_->detach(index);
  session_.was_busy(now());
  if (!session_.was_up()) return first_attempt_failed_on_io(index, cause);
  flush_control_on_io();
  fail_overdue_on_io();
  schedule_look_on_io();
  check_leaving_on_io(index);
}

bool ClientDriver::lives_in_part_on_io(unsigned path) {
  unsigned silence = 0;
  for (auto& lane : lanes_) silence = std::max(silence, lane->silence(path));
  return session_.lives_in_part(path, silence);
}

void ClientDriver::distrust_on_io(unsigned index) {
  session_.distrust(index, now());
  report({.kind = Notice::Kind::path_distrusted, .path = index});
}

/// Something went over the path, and nothing of it was answered.
bool ClientDriver::in_vain_on_io(unsigned path) {
  bool answered = false;
  bool unanswered = false;
  for_each_lane([&](ClientLane& lane) {
    answered = answered || lane.answered(path);
    unanswered = unanswered || lane.unanswered(path);
  });
  return unanswered && !answered;
}

/// Of the connections that carry I/O, before they are closed.
void ClientDriver::report_statistics(unsigned index) const {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::string moved = lanes_[i]->statistics(index);
    if (moved.empty()) continue;
    notices_.log(LogLevel::debug, notices_.name_of_session() + ": connection " +
                                      std::to_string(i + 1) + " to " +
                                      notices_.name_of_path(index) + ": " + moved);
  }
}

/// What somebody has asked for is no trouble.
void ClientDriver::report_end(unsigned index, bool was_connected, const Cause& cause) {
  if (!cause.by_command()) {
    report({.kind = was_connected ? Notice::Kind::path_lost : Notice::Kind::path_unreachable,
            .path = index,
            .cause = cause});
  } else if (was_connected) {
    report({.kind = Notice::Kind::path_closed, .path = index, .cause = cause});
  }
}

/// Later: whoever noticed something is on the stack.
void ClientDriver::check_leaving_on_io(unsigned index) {
  if (session_.leaving(index)) asio::post(io_, [this, index] { let_go_on_io(index); });
}

/// Whoever may come yet is tried again until the deadline. The session fails before that when no
/// path can make it and one of them was refused; the first refusal is the user's reason. A path to
/// another server says nothing of this one.
void ClientDriver::first_attempt_failed_on_io(unsigned index, const Cause& cause) {
  const bool foreign = session_.foreign(index) && !session_.names_server(index);
  const Failure failure = notices_.failure_of(cause);
  const bool may_come =
      foreign || (may_come_yet(failure.error) && session_.path(index).refusal() == 0);
  note_attempt_on_io(index, failure.text);
  report({.kind = may_come ? Notice::Kind::path_absent : Notice::Kind::path_refused,
          .path = index,
          .cause = cause,
          .paths = waiting_paths_on_io()});
  if (foreign) {
    lateness_.foreign = cause;
  } else if (may_come) {
    lateness_.absent = cause;
  } else if (failure_.text.empty()) {
    const std::lock_guard lock{mutex_};
    failure_ = failure;
  }
  const bool refused = !failure_.text.empty();
  if (!refused) schedule_look_on_io();
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.state(i) == PathState::connecting) return;
  }
  if (refused) fail_on_io(Failure{failure_});
}

}  // namespace rtrs
