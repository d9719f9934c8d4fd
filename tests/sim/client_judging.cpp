// SPDX-License-Identifier: BSD-3-Clause
// Judges a client's paths and waits.
#include <algorithm>

#include "tests/sim/client_driver.hpp"

namespace sim {

/// Nothing fails while nothing is in the way for as long as requests may wait.
void ClientDriver::check_overdue() const {
  const Instant awake =
      std::max(world_.awake_since(setup_.node), world_.awake_since(setup_.server));
  const Instant since = world_.now() - setup_.client.no_path_timeout;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (is_in_the_way(i)) return;
  }
  if (std::max(awake, lost_at_) < since - 1s) {
    world_.violate(who() + " fails requests although nothing is in the way of any path");
  }
}

/// Independent of the other connections. Each tick may be a twentieth late.
void ClientDriver::check_control(unsigned index, unsigned misses_max) {
  if (!session_.path(index).exactly_once()) return;
  const Instant since = std::max(paths_[index].control_heard, world_.awake_since(setup_.node));
  const Duration interval = setup_.knobs.heartbeat_interval;
  const Duration limit = (interval + interval / 20) * (misses_max + 3) + 20ms;
  if (world_.now() - since > limit) {
    world_.violate(who() + " keeps a path whose connection 0 says nothing");
  }
}

/// Something hinders some of its connections, or may seem to.
bool ClientDriver::is_in_the_way(unsigned index) const {
  if (!exactly_once()) return true;  // such servers say nothing on connections but 0
  const Instant awake =
      std::max(world_.awake_since(setup_.node), world_.awake_since(setup_.server));
  if (world_.now() - awake < setup_.knobs.heartbeat_interval * (session_.misses_max(index) + 3)) {
    return true;
  }
  return std::ranges::any_of(paths_[index].links,
                             [](const Link& link) { return link.wire && link.wire->touched(); });
}

void ClientDriver::check_wait(Instant asked, bool writes, std::size_t bytes) const {
  if (!up_ || failing_) return;
  path_watch_.check_wait(asked);
  const auto blocked = blocked_since(writes, bytes);
  if (blocked) path_watch_.check_blocked(std::max(asked, *blocked), writes);
}

bool ClientDriver::exactly_once() const {
  return !setup_.client.resends_at_once &&
         (session_.accepted().extension.features & rtrs::wire::kFeatureExactlyOnce) != 0;
}

void ClientDriver::check_latency() const {
  if (!up_ || failing_ || !exactly_once()) return;
  unsigned misses_max = 0;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    misses_max = std::max(misses_max, session_.misses_max(i));
  }
  // An OPEN, which may wait for others at the server, takes a permit of I/O where there is one
  // only.
  constexpr Duration kOpening = 5s;
  const bool only_io = lanes_[0]->permits().count() > 0;
  latency_watch_.check(healthy_since(), misses_max, races() && only_io,
                       only_io ? Duration::zero() : kOpening);
}

/// Of the path that has been so for the longest time.
std::optional<Instant> ClientDriver::healthy_since() const {
  std::optional<Instant> longest;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    auto since = path_watch_.usable_since(i);
    for (const Link& link : paths_[i].links) {
      if (since && link.wire) since = std::max(*since, link.wire->calm_since());
    }
    const bool touched = std::ranges::any_of(
        paths_[i].links, [](const Link& link) { return link.wire && link.wire->touched(); });
    if (since && !touched && !session_.at(i).distrust.active())
      longest = std::min(*since, longest.value_or(*since));
  }
  return longest;
}

bool ClientDriver::races() const {
  return exactly_once() &&
         (session_.accepted().extension.features & rtrs::wire::kFeatureRaces) != 0;
}

void ClientDriver::judge_distrust(unsigned index) {
  if (!in_the_way_) world_.violate(who() + " distrusts a path that nothing is in the way of");
  // A witness, from which nobody waits for a request, may be one although it is not trusted.
  if (owed_requests_ && network_.is_obstructed(serial_, index))
    latency_watch_.stalled(index, healthy_since());
}

/// On all paths.
std::optional<Instant> ClientDriver::blocked_since(bool writes, std::size_t bytes) const {
  const Side from = writes ? Side::client : Side::server;
  std::optional<Instant> since;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (!session_.at(i).exists()) continue;
    const auto blocked = network_.blocks(serial_, i, from, bytes);
    if (!blocked) return std::nullopt;
    since = std::max(*blocked, since.value_or(*blocked));
  }
  return since;
}

}  // namespace sim
