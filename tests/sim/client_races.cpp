// SPDX-License-Identifier: BSD-3-Clause
// The race between the paths of a simulated client: who looks at it, and judges it.
#include <bit>
#include <utility>

#include "tests/sim/client_driver.hpp"

namespace sim {
namespace {

constexpr Duration kLook = 50ms;
/// A server that looks at its arrivals as late as that is as good as silent.
constexpr Duration kAsGoodAsSilent = 40ms;

}  // namespace

/// Without chance, so that all else is as it is without.
void ClientDriver::schedule_races() {
  if (!setup_.client.races || !setup_.client.survives) return;
  scope_.after(kLook + 1ms * (serial_ % 5), [this] { run_races(); });
}

void ClientDriver::run_races() {
  if (closed_ || failing_) return;
  rtrs::Raced all;
  bool changed = false;
  for (LaneIndex i = 1; i < lanes_.size(); ++i) {
    if (lanes_[i]->quiet(world_.now()) != 0 && !receive_all(i)) return;
    in_race_ = true;
    const rtrs::Raced raced = lanes_[i]->race(world_.now());
    in_race_ = false;
    const unsigned before = std::exchange(silent_[i], raced.silent);
    judge_race(i, before, raced);
    for (const SentInRace& sent : std::exchange(sent_in_race_, {})) {
      path_watch_.requested(sent.path, i, sent.owes);
      if (sent.owes) judge_move(i, sent);
    }
    lanes_[i]->flush();
    all += raced;
    changed = changed || raced.moved > 0 || raced.silent != before;
  }
  if (changed) feed({.kind = rtrs::ClientEvent::Kind::raced, .raced = all});
  schedule_races();
}

/// False: the session is over.
bool ClientDriver::receive_all(LaneIndex i) {
  for (unsigned path = 0; path < paths_.size(); ++path) {
    const auto has_arrivals = [&] {
      return lanes_[i]->attached(path) && paths_[path].open &&
             paths_[path].links[i].queue_pair->has_arrivals();
    };
    while (has_arrivals()) {
      progress(path, i);
      if (world_.broken() || closed_ || failing_) return false;
    }
  }
  return true;
}

/// Requests leave a connection only if it has really carried nothing.
void ClientDriver::judge_race(LaneIndex i, unsigned before, const rtrs::Raced& raced) {
  const NetworkKnobs& network = setup_.knobs.network;
  const bool reads_late = network.late_read > 0 && network.late_read_max >= kAsGoodAsSilent;
  for (unsigned path = 0; path < paths_.size(); ++path) {
    const bool is = (raced.silent >> path & 1) != 0;
    path_watch_.set_silent(path, i, is);
    judge_silence(path, i, is);
    if (!is) continue;
    const Wire& wire = *paths_[path].links[i].wire;
    const bool is_only = std::has_single_bit(raced.silent) && raced.since != Instant::max();
    if (is_only) judge_bytes(wire, raced.since);
    if ((before >> path & 1) != 0) continue;
    world_.note("client", serial_, "finds a path silent", path, i);
    const bool was_hushed = wire.calm_since() >= raced.since;
    // Between its answers to a witness and to this one.
    const bool stands = world_.awake_since(setup_.server) >= raced.since;
    const bool slow = network.rate > 0 && !network.stream;  // nobody sees the bytes move
    if (wire.touched() || wire.over() || was_hushed || stands || reads_late || slow) continue;
    world_.violate(who() + " finds a path silent that nothing is in the way of");
  }
}

/// A request that leaves a silent path has waited, and does not meet another one of which two looks
/// could tell: it was asked at the first of them, and at the second one a better path had answered.
void ClientDriver::judge_move(LaneIndex i, const SentInRace& sent) {
  constexpr Duration kLong = 400ms;  // until a request leaves its path
  const NetworkKnobs& network = setup_.knobs.network;
  const Duration looked_at = network.poll_max * (network.slow_poll > 0 ? 100 : 1);
  const Duration answer = 2 * (network.latency_max + network.departure_max + looked_at);
  if (answer > 20ms || network.rate > 0 || network.late_read > 0) return;
  const Instant now = world_.now();
  const Instant awake =
      std::max(world_.awake_since(setup_.server), world_.awake_since(setup_.node));
  const auto stood = [&](unsigned path) {
    const auto since = path_watch_.usable_since(path);
    return since && std::max(*since, awake) + kLong < now;
  };
  const auto mute_since = paths_[sent.path].links[i].wire->mute_since();
  const bool mute = mute_since && *mute_since + 2 * (kLook + 5ms) + 2 * answer < now;
  if (!mute || !stood(sent.path)) return;
  for (unsigned path = 0; path < paths_.size(); ++path) {
    if ((sent.been_on >> path & 1) != 0 || !stood(path)) continue;
    if (copies_.contains({path, sent.permit})) continue;
    const Wire& wire = *paths_[path].links[i].wire;
    if (wire.touched() || wire.over() || wire.calm_since() + kLong >= now) continue;
    world_.violate(who() + " moves a request from a silent path to one that says nothing either");
  }
}

/// One that stays silent is given up, whether it owes answers to requests or not.
void ClientDriver::judge_silence(unsigned path, LaneIndex i, bool is) {
  if (!is) {
    silent_since_.erase({path, i});
    return;
  }
  const Instant since = silent_since_.try_emplace({path, i}, world_.now()).first->second;
  const Duration interval = setup_.knobs.heartbeat_interval;
  const Duration limit = (interval + interval / 20) * (session_.misses_max(path) + 3) + 20ms;
  if (world_.now() - std::max(since, world_.awake_since(setup_.node)) > limit) {
    world_.violate(who() + " keeps a path on which a connection is silent");
  }
}

/// A connection whose bytes move is not silent, be in its way what may. `since`: the time when
/// something came last.
void ClientDriver::judge_bytes(const Wire& wire, Instant since) {
  constexpr std::uint64_t kMoves = 1024;  // bytes; more than questions have
  const Instant looked = std::max(since, world_.awake_since(setup_.node)) + 2 * kLook;
  if (!setup_.knobs.network.stream || looked >= world_.now() || wire.over()) return;
  if (wire.carried(world_.now()) - wire.carried(looked) >= kMoves) {
    world_.violate(who() + " finds a path silent whose bytes move");
  }
}

}  // namespace sim
