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
  const unsigned generation = machine_.generation(index);
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  ClientPathHooks hooks;
  hooks.ready = [this, index] { feed_on_io({.kind = ClientEvent::Kind::ready, .path = index}); };
  hooks.lost = [this, index, generation](const Failure& failure) {
    lose_on_io(index, generation, {failure.error, failure.text});
  };
  hooks.traffic = [this, index] { return heard_on_io(index); };
  hooks.latency = [this, index](Duration latency) {
    if (options_.policy != PathPolicy::min_latency) return;
    lanes_.for_each([&](ClientLane& lane) { lane.set_latency(index, latency); });
  };
  hooks.access = [this, index] { feed_on_io({.kind = ClientEvent::Kind::access, .path = index}); };
  hooks.recall = [this] {
    if (options_.recovery != nullptr) options_.recovery->on_recall();
  };
  hooks.flush_all = [this] { paths_.flush(); };
  paths_.start(index, std::make_shared<PathDriver>(
                          io_, session_.path(index), connect_options(options_, address, patience),
                          paths_.lookup(index, address.host), options_.session_name,
                          options_.connect_timeout, std::move(hooks)));
}

bool ClientDriver::heard_on_io(unsigned index) {
  feed_on_io({.kind = ClientEvent::Kind::awake});
  const auto signs = lanes_.look_after(index, session_.misses_max(index));
  feed_on_io({.kind = ClientEvent::Kind::heartbeat, .path = index, .lanes_live = signs.all_live});
  held_.look(now());
  return signs.heard;
}

/// Memory that a device does not take is copied.
void ClientDriver::attach_on_io(unsigned index) {
  lanes_.attach(index, machine_.generation(index), paths_.at(index), [&](Connection& connection) {
    for (const Failure& refusal : memory_.introduce_to(connection)) {
      notices_.log(LogLevel::warning, notices_.name_of_path(index) + ": " + refusal.text);
    }
  });
}

void ClientDriver::lose_on_io(unsigned index, unsigned generation, const Cause& cause) {
  ClientEvent::Traffic traffic;
  if (session_.at(index).state == PathState::connected) traffic = lanes_.traffic(index);
  feed_on_io({.kind = ClientEvent::Kind::lost,
              .path = index,
              .generation = generation,
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
