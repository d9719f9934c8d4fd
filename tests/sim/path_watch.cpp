// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/path_watch.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

/// Between an event and what somebody else finds of it.
constexpr Duration kTimerSlack = 1ms;
/// A path that ends sooner, and has answered nothing, is none. docs/reliability.md.
constexpr Duration kSoon = 2s;
/// Of ProbePatience.
constexpr unsigned kMostPatience = 8;

}  // namespace

PathWatch::PathWatch(World& world, const Knobs& knobs, const ClientKnobs& client, NodeId self,
                     std::string who)
    : world_{world}, knobs_{knobs}, client_{client}, self_{self}, who_{std::move(who)} {}

bool PathWatch::any_joined() const {
  return std::ranges::any_of(paths_, [](const Path& path) { return path.joined; });
}

// ---- What happens to the paths ------------------------------------------------------------------

void PathWatch::added(unsigned index, unsigned rank) {
  paths_[index] = Path{};
  paths_[index].rank = rank;
  paths_[index].exists = true;
}

void PathWatch::joined(unsigned index, unsigned access, bool accessible) {
  Path& path = paths_[index];
  const Instant now = world_.now();
  if (good_before_ == Instant{}) good_until_ = good_before_ = now;
  path.access = access;
  path.accessible = accessible;
  path.joined = true;
  path.joined_at = path.since = path.usable_since = came_ = now;
  path.requests = path.answers = 0;
}

void PathWatch::access_changed(unsigned index, unsigned access, bool accessible) {
  Path& path = paths_[index];
  const Instant now = world_.now();
  if (!path.joined) return;
  if (path.may_carry()) good_until_ = now;
  good_before_ = now;
  if (access < path.access) path.since = now;
  if (path.accessible || access > path.access) reshuffled_ = now;
  path.access = access;
  if (accessible && !path.accessible) path.usable_since = now;
  path.accessible = accessible;
}

void PathWatch::set_leaving(unsigned index, bool leaving) {
  paths_[index].leaving = leaving;
  paths_[index].usable_since = reshuffled_ = world_.now();
}

void PathWatch::set_distrusted(unsigned index, bool distrusted) {
  Path& path = paths_[index];
  if (std::exchange(path.distrusted, distrusted) == distrusted) return;
  path.usable_since = reshuffled_ = world_.now();
}

void PathWatch::set_silent(unsigned index, std::size_t cid, bool silent) {
  auto& all = paths_[index].silent;
  silent ? static_cast<void>(all.insert(cid)) : static_cast<void>(all.erase(cid));
}

bool PathWatch::of_use(const Path& path) const {
  const bool in_vain = path.requests > 0 && path.answers == 0;
  return !in_vain || world_.now() >= path.joined_at + kSoon;
}

void PathWatch::lost(unsigned index) {
  Path& path = paths_[index];
  if (!path.joined) return;
  const Instant now = world_.now();
  if (of_use(path)) {
    if (path.may_carry()) good_until_ = now;
    good_before_ = path.good_until = now;
  }
  // It did not come in vain: it was there when another one still worked.
  if (good_before_ >= path.joined_at) good_before_ = now;
  path.joined = false;
  path.silent.clear();
  lost_ = reshuffled_ = now;
}

void PathWatch::answered(unsigned index) {
  ++paths_[index].answers;
  answered_ = world_.now();
}

// ---- Which of them ------------------------------------------------------------------------------

void PathWatch::requested(unsigned index, std::size_t cid, bool bound) {
  ++paths_[index].requests;
  if (cid != 0 && !bound) check_choice(index, cid);
}

void PathWatch::check_choice(unsigned chosen, std::size_t cid) {
  const Instant now = world_.now();
  const Path& path = paths_[chosen];
  const bool any_silent =
      std::ranges::any_of(paths_, [&](const Path& other) { return other.silent.contains(cid); });
  if (path.silent.contains(cid)) {
    const bool needs_not = std::ranges::any_of(paths_, [&](const Path& other) {
      return other.may_carry() && !other.silent.contains(cid);
    });
    if (needs_not) world_.violate(who_ + " uses a silent path, although another one answers");
    return;
  }
  if (any_silent) return;  // the others are used, whatever their class
  // Requests in flight on a lost path go on before anybody has looked at the others.
  const bool looked = now > std::max(reshuffled_, world_.awake_since(self_));
  bool best = true;     // of all that are usable
  bool before = false;  // another one was used when it came
  for (unsigned i = 0; i < paths_.size(); ++i) {
    const Path& other = paths_[i];
    if (i == chosen || !other.usable()) continue;
    const bool settled = now > std::max(other.since, other.usable_since) + client_.settle_time;
    if (other.order() < path.order() && settled && looked) {
      return world_.violate(who_ + " does not use its best path, which has settled");
    }
    best = best && other.order() > path.order();
    before = before || (other.usable_since < path.since && !other.distrusted);
  }
  const bool early = now < path.since + client_.settle_time && reshuffled_ < path.since;
  if (best && before && early && path.usable()) {
    world_.violate(who_ + " uses a better path before it has settled");
  }
}

// ---- How long -----------------------------------------------------------------------------------

void PathWatch::gave_up() {
  const bool carries =
      std::ranges::any_of(paths_, [](const Path& path) { return path.may_carry(); });
  // An event that it cannot have missed does not count.
  const Duration stood = world_.stood_still(self_, good_until_);
  const bool noticed = stood > 2 * knobs_.heartbeat_interval;
  const Duration least = client_.no_path_timeout + (noticed ? stood : Duration::zero());
  if (carries || world_.now() < good_until_ + least) {
    world_.violate(who_ + " gives up waiting for a path too early");
  }
}

void PathWatch::gave_up(unsigned index) {
  if (world_.now() < paths_[index].good_until + client_.no_path_timeout) {
    world_.violate(who_ + " gives up what waits for a path too early");
  }
}

/// Until a path that stands is given up because it carries nothing.
Duration PathWatch::detection() const {
  const Duration interval = knobs_.heartbeat_interval + knobs_.heartbeat_interval / 20;
  const Duration transport = knobs_.network.transport_timeout;
  const Duration silence = interval * (knobs_.heartbeat_misses * kMostPatience + 3);
  return silence + (transport < 1h ? 2 * transport : Duration::zero());
}

bool PathWatch::extension() const {
  return client_.exactly_once && (knobs_.server_extensions || client_.resends_at_once);
}

/// Without the extension permits wait for their path, and whoever has none waits with them.
Instant PathWatch::permits_free_since() const {
  if (extension()) return {};
  const bool complete =
      std::ranges::all_of(paths_, [](const Path& path) { return path.joined || !path.exists; });
  return complete ? came_ : world_.now();
}

void PathWatch::check_wait(Instant asked) const {
  if (has_no_limit()) return;
  const Instant now = world_.now();
  const Instant awake = world_.awake_since(self_);
  const Instant deadline = std::max(good_before_, awake) + client_.no_path_timeout;
  if (!any_joined() && now > std::max(lost_, deadline) + kTimerSlack) {
    return world_.violate(who_ + " still waits, and no path has come for too long");
  }
  if (knobs_.storage.hang > 0 || knobs_.excuses_obstacles()) return;
  const Instant since = std::max({asked, answered_, good_before_, permits_free_since(), awake});
  const Duration longest =
      client_.no_path_timeout + detection() + knobs_.longest_storage() + kSoon + 1s;
  if (now > since + longest) {
    world_.violate(who_ + " still waits, and no path has answered anything for too long");
  }
}

/// That small ones get through makes no path of it. An answer that storage takes long for looks,
/// until it is on its way, as if nothing were lost.
void PathWatch::check_blocked(Instant since, bool writes) const {
  const bool slow = knobs_.longest_storage() > 3 * knobs_.heartbeat_interval;
  if ((slow && !writes) || has_no_limit() || !extension() || knobs_.excuses_obstacles()) return;
  const Duration longest =
      client_.no_path_timeout + 2 * detection() + knobs_.longest_storage() + kSoon + 1s;
  if (world_.now() > std::max(since, world_.awake_since(self_)) + longest) {
    world_.violate(who_ + " still waits for what no path has let through for too long");
  }
}

}  // namespace sim
