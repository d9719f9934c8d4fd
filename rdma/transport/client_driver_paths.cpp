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
  const unsigned life = machine_.life(index);
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  ClientPathHooks hooks;
  hooks.ready = [this, index] { feed_on_io({.kind = ClientEvent::Kind::ready, .path = index}); };
  hooks.lost = [this, index, life](const Failure& failure) {
    lose_on_io(index, life, {failure.error, failure.text});
  };
  hooks.traffic = [this, index] { return heard_on_io(index); };
  hooks.latency = [this, index](Duration latency) {
    if (options_.policy != PathPolicy::min_latency) return;
    for_each_lane([&](ClientLane& lane) { lane.set_latency(index, latency); });
  };
  hooks.access = [this, index] { feed_on_io({.kind = ClientEvent::Kind::access, .path = index}); };
  hooks.recall = [this] {
    if (options_.recovery != nullptr) options_.recovery->on_recall();
  };
  hooks.flush_all = [this] { flush_control_on_io(); };
  path.driver = std::make_shared<PathDriver>(
      io_, session_.path(index), connect_options(options_.paths[index], patience), path.lookup,
      options_.session_name, options_.connect_timeout, std::move(hooks));
  path.driver->start();
}

bool ClientDriver::heard_on_io(unsigned index) {
  feed_on_io({.kind = ClientEvent::Kind::awake});
  bool heard = false;
  bool live = true;
  for (auto& lane : lanes_) {
    lane->service();
    heard |= lane->heard(index);
    live &= lane->probe(index, session_.misses_max(index));
  }
  feed_on_io({.kind = ClientEvent::Kind::heartbeat, .path = index, .lanes_live = live});
  report_held_opens_on_io();
  report_held_writes_on_io();
  return heard;
}

void ClientDriver::create_lanes_on_io(unsigned index) {
  for (Unresolved* scope : {&unresolved_, &control_unresolved_}) {
    scope->on_end = [this, scope] {
      asio::post(io_, [this, scope] {
        if (closed_) return;
        if (!scope->writes()) scope->refuse(0);
        for_each_lane([](ClientLane& lane) { lane.resume(); });
        run_background_job_on_io();  // to close what could not be closed
      });
    };
  }
  const auto slots = session_.path(index).slots_per_lane();
  control_lane_ = std::make_unique<ClientLane>(0, slots[0], &control_unresolved_);
  control_lane_->keep_order();
  std::uint16_t first = slots[0];
  for (std::uint16_t cid = 1; cid < slots.size() && slots[cid] > 0; ++cid) {
    lanes_.push_back(std::make_unique<LaneDriver>(
        first, slots[cid], &unresolved_, &control_unresolved_, options_.spin,
        [this](unsigned path, unsigned life, std::string why) {
          asio::post(io_, [this, path, life, why = std::move(why)] {
            lose_on_io(path, life, {EIO, notices_.name_of_path(path) + ": " + why});
          });
        }));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
}

void ClientDriver::attach_on_io(unsigned index) {
  Path& path = paths_[index];
  ClientPath& core = path.driver->core();
  core.set_control_handler(&control_lane_->connection(index));
  core.attach(*control_lane_, index, 0, path.driver->control());
  for (std::uint16_t cid = 1; cid <= lanes_.size(); ++cid) {
    auto connection = path.driver->take(cid);
    register_all_on_io(index, *connection);
    lanes_[cid - 1U]->attach(index, machine_.life(index), std::move(connection),
                             [&](ClientLane& lane, QueuePair& queue_pair) {
                               core.attach(lane, index, cid, queue_pair);
                             });
  }
  path.driver->flush();
}

void ClientDriver::run_background_job_on_io() {
  if (closed_ || background_job_ || options_.recovery == nullptr ||
      control_lane_->permits().count() == 0)
    return;
  background_job_ = options_.recovery->background_job();
  if (!background_job_) return;
  background_since_ = now();
  background_job_->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        asio::post(self.io_, [&self] { self.background_job_ended_on_io(); });
      },
      this);
  background_job_->start(*control_lane_);
  flush_control_on_io();
}

void ClientDriver::background_job_ended_on_io() {
  const auto background_job = std::move(background_job_);
  options_.recovery->background_job_ended(*background_job);
  if (background_job->error() != EIO)
    run_background_job_on_io();  // otherwise later: it may be over at once again
}

// ---- A path goes -------------------------------------------------------------------------------

void ClientDriver::lose_on_io(unsigned index, unsigned life, const Cause& cause) {
  ClientEvent::Traffic traffic;
  if (session_.state(index) == PathState::connected) {
    for_each_lane([&](ClientLane& lane) {
      traffic.answered = traffic.answered || lane.connection(index).answered();
      traffic.unanswered = traffic.unanswered || lane.in_flight(index) > 0;
    });
    for (auto& lane : lanes_) traffic.silence = std::max(traffic.silence, lane->silence(index));
  }
  feed_on_io({.kind = ClientEvent::Kind::lost,
              .path = index,
              .life = life,
              .cause = cause,
              .traffic = traffic});
}

void ClientDriver::close_path_on_io(unsigned index) {
  paths_[index].driver->close();
  paths_[index].driver.reset();
  report_statistics(index);
}

void ClientDriver::detach_on_io(unsigned index) {
  for (auto& lane : lanes_) lane->detach(index);
  if (control_lane_) control_lane_->detach(index);
  flush_control_on_io();
  feed_on_io({.kind = ClientEvent::Kind::busy});
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

/// The server may still carry out requests that came over the path, or their end is known only
/// there.
bool ClientDriver::is_bound_on_io(unsigned index) {
  bool bound = false;
  for_each_lane([&](ClientLane& lane) { bound |= lane.bound(index); });
  return bound;
}

/// Paths that may come yet are tried again until the deadline. The session fails before that when
/// no path can make it and one of them was refused; the first refusal is the user's reason. A path
/// to another server says nothing of this one.
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
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.state(i) == PathState::connecting) return;
  }
  if (refused) fail_on_io(Failure{failure_});
}

}  // namespace rtrs
