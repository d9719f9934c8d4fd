// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/heartbeat_watch.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

/// Between an answer and the moment somebody looks at it.
constexpr Duration kHeartbeatSlack = 20ms;

}  // namespace

HeartbeatWatch::HeartbeatWatch(World& world, const Knobs& knobs, std::string who, NodeId self,
                               NodeId peer)
    : world_{world},
      knobs_{knobs},
      who_{std::move(who)},
      self_{self},
      peer_{peer},
      scope_{world, 0},
      last_heard_{world.now()} {
  check();
}

void HeartbeatWatch::check() {
  const Duration limit = knobs_.heartbeat_limit() + kHeartbeatSlack;
  const Instant deadline = std::max(last_heard_, world_.awake_since(self_)) + limit;
  if (world_.now() >= deadline) {
    return world_.violate(who_ + " has not declared dead a peer that is silent for too long");
  }
  scope_.after(deadline - world_.now(), [this] { check(); });
}

void HeartbeatWatch::dead(bool disturbed) {
  if (world_.now() - last_heard_ < knobs_.heartbeat_interval * (knobs_.heartbeat_misses + 1)) {
    return world_.violate(who_ + " has declared its peer dead too early");
  }
  // Both ends ran, and nothing was lost, since before the peer was last heard of.
  const Instant since = last_heard_ - kHeartbeatSlack;
  const bool stopped = world_.awake_since(self_) > since || world_.awake_since(peer_) > since;
  if (!disturbed && !stopped) world_.violate(who_ + " has declared dead a peer that is alive");
}

}  // namespace sim
