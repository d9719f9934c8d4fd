// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/nemesis.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace sim {

Nemesis::Nemesis(World& world, const Knobs& knobs, Network& network, ServerNode& server,
                 std::vector<std::unique_ptr<ClientNode>>& clients)
    : world_{world},
      knobs_{knobs},
      network_{network},
      server_{server},
      clients_{clients},
      scope_{world, 0} {}

void Nemesis::start() {
  if (knobs_.faults.mean > Duration::zero()) schedule();
  if (knobs_.access_mean > Duration::zero()) schedule_access();
  if (knobs_.faults.large || knobs_.faults.idle) schedule_obstacle();
}

void Nemesis::schedule() {
  scope_.after(world_.rng().delay(0us, knobs_.faults.mean * 2), [this] {
    if (healed_) return;
    strike();
    schedule();
  });
}

void Nemesis::strike() {
  const FaultKnobs& faults = knobs_.faults;
  std::vector<std::function<void()>> choices;
  if (faults.cut) choices.push_back([this] { cut(); });
  if (faults.late) choices.insert(choices.end(), 3, [this] { cut_late(); });
  if (faults.silence) choices.push_back([this] { silence(); });
  if (faults.mute) choices.insert(choices.end(), 3, [this] { mute(); });
  if (faults.stale) choices.insert(choices.end(), 2, [this] { send_stale_copy(); });
  if (faults.unread) choices.insert(choices.end(), 3, [this] { cut_unread(); });
  if (faults.stall) choices.push_back([this] { stall(); });
  if (faults.hush) choices.insert(choices.end(), 4, [this] { hush(); });
  if (faults.pause) choices.push_back([this] { pause(); });
  if (faults.strangers) choices.insert(choices.end(), 4, [this] { server_.knock(); });
  if (faults.restart) choices.push_back([this] { restart(); });
  if (faults.kill_client) {
    choices.push_back([this] { clients_[world_.rng().below(clients_.size())]->kill(); });
  }
  if (!choices.empty()) choices[world_.rng().below(choices.size())]();
}

std::shared_ptr<Wire> Nemesis::pick_wire() {
  std::vector<std::shared_ptr<Wire>> open;
  for (const auto& wire : network_.wires()) {
    if (!wire->over()) open.push_back(wire);
  }
  return open.empty() ? nullptr : open[world_.rng().below(open.size())];
}

/// One connection, its path, or all paths of its session.
unsigned Nemesis::draw_extent(unsigned whole_path) {
  if (!world_.rng().chance(whole_path)) return 0;
  return world_.rng().chance(300) ? 2 : 1;
}

bool Nemesis::is_hit(const Wire& other, const Wire& wire, unsigned extent) {
  if (extent == 0 || other.session() != wire.session()) return false;
  return extent == 2 || other.path() == wire.path();
}

void Nemesis::cut() {
  const auto wire = pick_wire();
  if (!wire) return;
  const unsigned extent = draw_extent(300);
  for (const auto& other : network_.wires()) {
    const bool hit = other == wire || is_hit(*other, *wire, extent);
    if (hit && !other->over()) other->cut();
  }
}

void Nemesis::cut_late() {
  const auto wire = pick_wire();
  if (!wire) return;
  const unsigned extent = draw_extent(700);
  const Duration longest =
      world_.rng().pick<Duration>({1ms, 10ms, 300ms, knobs_.heartbeat_limit() * 2});
  const Duration lag = world_.rng().delay(0us, longest);
  for (const auto& other : network_.wires()) {
    const bool hit = other == wire || is_hit(*other, *wire, extent);
    if (hit && !other->over()) other->cut_late(lag);
  }
}

/// A Linux client gives a path up while a request of it waits to be read.
void Nemesis::cut_unread() {
  std::vector<std::shared_ptr<Wire>> choices;
  for (const auto& wire : network_.wires()) {
    if (!wire->over() && wire->is_prompt() && wire->cid() != 0) choices.push_back(wire);
  }
  if (!choices.empty()) choices[world_.rng().below(choices.size())]->cut_behind_request();
}

void Nemesis::silence() {
  const auto wire = pick_wire();
  if (!wire) return;
  const unsigned extent = draw_extent(700);
  const bool to_server = world_.rng().chance(700);
  const bool to_client = !to_server || world_.rng().chance(500);
  for (const auto& other : network_.wires()) {
    if (other != wire && !is_hit(*other, *wire, extent)) continue;
    if (to_server) other->silence(Side::client);
    if (to_client) other->silence(Side::server);
  }
}

/// Loses all messages of the server on connection 0 of a path, and only these.
void Nemesis::mute() {
  std::vector<std::shared_ptr<Wire>> choices;
  for (const auto& wire : network_.wires()) {
    if (!wire->over() && wire->cid() == 0) choices.push_back(wire);
  }
  if (!choices.empty()) choices[world_.rng().below(choices.size())]->silence(Side::server);
}

/// A client, or its hardware, that has not noticed how old its request is.
void Nemesis::send_stale_copy() {
  std::vector<std::shared_ptr<Wire>> choices;
  for (const auto& wire : network_.wires()) {
    if (!wire->over() && wire->has_stale_copy()) choices.push_back(wire);
  }
  if (!choices.empty()) choices[world_.rng().below(choices.size())]->send_stale_copy();
}

void Nemesis::stall() {
  const auto wire = pick_wire();
  if (!wire) return;
  // Heartbeats must not be late enough to make anybody suspicious.
  const Duration longest = wire->cid() == 0 ? knobs_.heartbeat_interval / 8 : 300ms;
  wire->stall(world_.rng().delay(1us, longest));
}

/// Of one direction or both. One of the ends may stand still meanwhile.
void Nemesis::hush() {
  const auto wire = pick_wire();
  if (!wire) return;
  Rng& rng = world_.rng();
  if (rng.chance(300)) return hush_in_turn(*wire);
  const unsigned extent = rng.chance(600) ? 1 : draw_extent(500);
  const std::uint64_t ways = rng.between(1, 3);
  const Duration time = rng.delay(50ms, rng.pick<Duration>({300ms, 1s, 3s}));
  for (const auto& other : network_.wires()) {
    if (other->over() || (other != wire && !is_hit(*other, *wire, extent))) continue;
    if ((ways & 1) != 0) other->hush(Side::client, time);
    if ((ways & 2) != 0) other->hush(Side::server, time);
  }
  if (!rng.chance(150)) return;
  const std::uint64_t chosen = rng.below(clients_.size() + 1);
  const NodeId node = chosen == 0 ? server_.node() : clients_[chosen - 1]->node();
  scope_.after(rng.delay(0us, time), [this, node, time] {
    if (!healed_) pause(node, time);
  });
}

/// All paths of a session but one, each a moment after another one, or at the same time.
void Nemesis::hush_in_turn(const Wire& spared) {
  Rng& rng = world_.rng();
  const std::uint64_t session = spared.session();
  const Duration apart = rng.pick<Duration>({1us, 250ms});
  for (unsigned path = 0; path < rtrs::kMaxPaths; ++path) {
    if (path == spared.path()) continue;
    const Duration time = rng.delay(300ms, 3s);
    scope_.after(rng.delay(0us, apart), [this, session, path, time] {
      for (const auto& other : network_.wires()) {
        if (healed_ || other->over() || other->session() != session || other->path() != path)
          continue;
        other->hush(Side::client, time);
        other->hush(Side::server, time);
      }
    });
  }
}

void Nemesis::pause() {
  Rng& rng = world_.rng();
  const std::uint64_t chosen = rng.below(clients_.size() + 1);
  const NodeId node = chosen == 0 ? server_.node() : clients_[chosen - 1]->node();
  pause(node, rng.pick<Duration>({2ms, knobs_.heartbeat_interval, knobs_.heartbeat_limit() * 2}));
}

void Nemesis::pause(NodeId node, Duration longest) {
  if (world_.paused(node)) return;
  Rng& rng = world_.rng();
  world_.note("node", node, "stops");
  world_.pause(node);
  scope_.after(rng.delay(1us, longest), [this, node] {
    world_.note("node", node, "goes on");
    world_.resume(node);
  });
}

/// One after the other, each for a while.
void Nemesis::schedule_obstacle() {
  scope_.after(world_.rng().delay(0us, 2s), [this] {
    if (healed_) return;
    obstruct();
    const Duration longest = world_.rng().pick<Duration>({3s, 15s, 100s});
    scope_.after(world_.rng().delay(1s, longest), [this] {
      world_.note("network", 0, "lets everything pass");
      network_.clear();
      schedule_obstacle();
    });
  });
}

/// On one path of a session, or on all of them.
void Nemesis::obstruct() {
  const auto wire = pick_wire();
  if (!wire) return;
  const Obstacle obstacle = draw_obstacle();
  const bool all = world_.rng().chance(300);
  world_.note("network", wire->session(), "obstructs", all ? rtrs::kMaxPaths : wire->path(),
              std::min(obstacle.largest[0], obstacle.largest[1]),
              static_cast<std::uint64_t>(obstacle.idle_max.count()));
  for (unsigned path = 0; path < rtrs::kMaxPaths; ++path) {
    if (all || path == wire->path()) network_.obstruct(wire->session(), path, obstacle);
  }
}

Obstacle Nemesis::draw_obstacle() {
  Rng& rng = world_.rng();
  const FaultKnobs& faults = knobs_.faults;
  Obstacle obstacle;
  obstacle.since = world_.now();
  const bool large = faults.large && (!faults.idle || rng.chance(600));
  if (large) {
    const std::uint64_t ways = rng.between(1, 3);
    for (unsigned from = 0; from < 2; ++from) {
      if ((ways >> from & 1) != 0) obstacle.largest[from] = rng.between(1000, 4000);
    }
  } else {
    obstacle.idle_max = rng.pick<Duration>({100ms, 500ms, 2s});
  }
  return obstacle;
}

/// No fault: an administrator.
void Nemesis::schedule_access() {
  scope_.after(world_.rng().delay(0us, knobs_.access_mean * 2), [this] {
    if (healed_) return;
    using enum rtrs::wire::PathAccess;
    const auto listener = static_cast<unsigned>(world_.rng().below(kListeners));
    server_.set_access(listener, world_.rng().pick({optimized, non_optimized, inaccessible}));
    schedule_access();
  });
}

void Nemesis::restart() {
  if (std::exchange(restarting_, true)) return;
  switch (world_.rng().below(3)) {
    case 0:
      server_.stop();
      break;
    case 1:
      server_.kill(/*power_loss=*/false);
      break;
    default:
      server_.kill(/*power_loss=*/true);
      break;
  }
  start_again();
}

void Nemesis::start_again() {
  scope_.after(world_.rng().delay(1us, 300ms), [this] {
    if (server_.running()) return start_again();  // it has not stopped yet
    restarting_ = false;
    server_.start();
  });
}

void Nemesis::heal() {
  healed_ = true;
  network_.clear();
  if (knobs_.access_mean == Duration::zero()) return;
  using enum rtrs::wire::PathAccess;
  for (unsigned i = 0; i < kListeners; ++i) {
    server_.set_access(i, world_.rng().pick({optimized, non_optimized}));
  }
}

}  // namespace sim
