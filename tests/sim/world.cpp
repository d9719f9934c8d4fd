// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/world.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace sim {

World::World(std::uint64_t seed, bool trace) : rng_{seed}, trace_{trace}, nodes_(1) {}

NodeId World::add_node() {
  nodes_.emplace_back();
  return static_cast<NodeId>(nodes_.size() - 1);
}

void World::push(Instant time, std::uint32_t scope, std::function<void()> action) {
  if (free_actions_.empty()) {
    free_actions_.push_back(static_cast<std::uint32_t>(actions_.size()));
    actions_.emplace_back();
  }
  const std::uint32_t index = free_actions_.back();
  free_actions_.pop_back();
  actions_[index] = std::move(action);
  queue({time, 0, scope, index});
}

void World::queue(Event event) {
  event.order = next_order_++;
  queue_.push_back(event);
  std::push_heap(queue_.begin(), queue_.end(), Later{});
}

std::function<void()> World::take_action(const Event& event) {
  free_actions_.push_back(event.action);
  return std::exchange(actions_[event.action], nullptr);
}

bool World::step() {
  while (!queue_.empty() && !broken()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later{});
    const Event event = queue_.back();
    queue_.pop_back();
    const ScopeState scope = scopes_[event.scope];
    if (!scope.alive) {
      take_action(event);
      continue;
    }
    now_ = std::max(now_, event.time);
    if (nodes_[scope.node].paused) {
      nodes_[scope.node].parked.push_back(event);
      continue;
    }
    ++events_;
    take_action(event)();
    return !broken();
  }
  return false;
}

void World::mix(std::uint64_t value) {
  hash_ = (hash_ ^ value) * 0x100000001B3;
  hash_ ^= hash_ >> 29;
}

void World::note(const char* who, std::uint64_t id, const char* what, std::uint64_t a,
                 std::uint64_t b, std::uint64_t c) {
  mix(static_cast<std::uint64_t>(now_.time_since_epoch().count()));
  for (const char* text : {who, what}) {
    for (; *text != '\0'; ++text) mix(static_cast<unsigned char>(*text));
  }
  for (const std::uint64_t number : {id, a, b, c}) mix(number);
  if (!trace_) return;
  const double milliseconds = static_cast<double>(now_.time_since_epoch().count()) / 1e6;
  std::printf("%14.6f ms  %-8s %-4llu %-34s %llu %llu %llu\n", milliseconds, who,
              static_cast<unsigned long long>(id), what, static_cast<unsigned long long>(a),
              static_cast<unsigned long long>(b), static_cast<unsigned long long>(c));
}

void World::violate(const std::string& rule) {
  if (broken()) return;
  violation_ = rule;
  note("rule", 0, "broken");
}

void World::pause(NodeId node) {
  nodes_[node].paused = true;
  nodes_[node].stopped_at = now_;
}

void World::resume(NodeId node) {
  Node& state = nodes_[node];
  if (!std::exchange(state.paused, false)) return;
  state.awake_since = now_;
  auto parked = std::exchange(state.parked, {});
  // Waiting events are found in any order: timers, sockets and completions have queues of their
  // own.
  const bool reversed = rng_.chance(300);
  if (reversed) std::reverse(parked.begin(), parked.end());
  for (Event& event : parked) {
    event.time = now_;
    queue(event);
  }
}

Instant World::awake_since(NodeId node) const {
  return nodes_[node].paused ? now_ : nodes_[node].awake_since;
}

Duration World::stood_still(NodeId node, Instant since) const {
  const Node& state = nodes_[node];
  return state.stopped_at > since ? awake_since(node) - state.stopped_at : Duration::zero();
}

Scope::Scope(World& world, NodeId node)
    : world_{world}, id_{static_cast<std::uint32_t>(world.scopes_.size())} {
  world.scopes_.push_back({node, true});
}

Scope::~Scope() { world_.scopes_[id_].alive = false; }

void Scope::after(Duration delay, std::function<void()> action) {
  world_.push(world_.now() + delay, id_, std::move(action));
}

}  // namespace sim
