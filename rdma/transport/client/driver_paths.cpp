// SPDX-License-Identifier: BSD-3-Clause
// Paths that come and go, and what becomes of the session then.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "rdma/transport/client/driver.hpp"
#include "rdma/transport/client/options.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {

void ClientDriver::connect_on_io(unsigned index) {
  // Long enough for a slow server, short enough to find a path soon that has come back.
  constexpr Duration kPatience = std::chrono::seconds{2};
  const PathAddress& address = options_.paths[index];
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  paths_.start(index, std::make_shared<PathDriver>(
                          io_, session_.path(index), connect_options(options_, address, patience),
                          paths_.lookup(index, address.host), options_.session_name,
                          options_.connect_timeout, *this,
                          PathLife{.path = index, .generation = machine_.generation(index)}));
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
