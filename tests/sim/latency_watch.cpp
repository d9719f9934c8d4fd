// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/latency_watch.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

/// For what is late, but neither lost nor stored slowly.
constexpr Duration kSlack = 1s;
/// A path that has stalled is not used for so long if another one works.
constexpr Duration kDistrust = 10s;
/// A session has three paths at most: what is lost may be lost twice before it meets the right one.
constexpr unsigned kOthers = 2;

}  // namespace

LatencyWatch::LatencyWatch(World& world, const Knobs& knobs, NodeId self, NodeId server,
                           std::string who)
    : world_{world}, knobs_{knobs}, self_{self}, server_{server}, who_{std::move(who)} {}

void LatencyWatch::check(std::optional<Instant> healthy_since, unsigned misses_max, bool races,
                         Duration opening) const {
  if (!healthy_since || knobs_.storage.hang > 0) return;
  const Duration interval = knobs_.heartbeat_interval + knobs_.heartbeat_interval / 20;
  const Duration silence = races ? Duration::zero() : kOthers * interval * (misses_max + 3);
  // Where memory is short, requests may have to be carried out one after the other.
  const unsigned rounds = knobs_.floor_requests == 0 ? 1U : 2U * knobs_.queue_depth;
  const Duration longest = silence + rounds * knobs_.longest_storage() + opening + kSlack;
  const Instant from =
      std::max({*healthy_since, world_.awake_since(self_), world_.awake_since(server_)});
  for (const auto& [permit, sent] : since_) {
    if (world_.now() <= std::max(sent.first, from) + longest) continue;
    return world_.violate(who_ + " has no answer for too long, although a path works; permit " +
                          std::to_string(permit));
  }
}

void LatencyWatch::requested(unsigned path, std::uint32_t permit) {
  Sent& sent = since_.try_emplace(permit, Sent{.first = world_.now()}).first->second;
  if ((sent.been >> path & 1) != 0 && !sent.stranded)
    world_.violate(who_ + " sends a request over a path that it has been on already");
  sent.path = path;
  sent.been = static_cast<rtrs::PathMask>(sent.been | 1U << path);
  sent.stranded = false;
}

void LatencyWatch::lost(unsigned path) {
  for (auto& [permit, sent] : since_) {
    sent.been = static_cast<rtrs::PathMask>(sent.been & ~(1U << path));
    sent.stranded = sent.stranded || sent.path == path;
  }
}

void LatencyWatch::stalled(unsigned path, std::optional<Instant> healthy_since) {
  const auto before = std::exchange(stalled_[path], world_.now());
  if (!before || !healthy_since || *healthy_since > *before || knobs_.excuses_obstacles()) return;
  if (world_.now() < *before + kDistrust) {
    world_.violate(who_ + " uses a path again that has just stalled, although another one works");
  }
}

}  // namespace sim
