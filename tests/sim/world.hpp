// SPDX-License-Identifier: BSD-3-Clause
// Simulated time: one queue of events, one clock, one source of chance, one trace.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rdma/core/time.hpp"
#include "tests/sim/rng.hpp"

namespace sim {

using rtrs::Duration;
using rtrs::Instant;

/// A process that can be stopped for a while; 0 is nobody and never stops.
using NodeId = std::uint32_t;

/// Everything that happens happens in here, in an order that only the seed decides.
class World {
 public:
  World(std::uint64_t seed, bool trace);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Instant now() const { return now_; }
  Rng& rng() { return rng_; }

  /// Runs the next event. False: there is none, or a rule was broken.
  bool step();

  /// Says what happens: enters the trace hash, and is printed when a trace was asked for.
  void note(const char* who, std::uint64_t id, const char* what, std::uint64_t a = 0,
            std::uint64_t b = 0, std::uint64_t c = 0);
  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t events() const { return events_; }

  /// A rule is broken: the run ends. The first one counts.
  void violate(const std::string& rule);
  const std::string& violation() const { return violation_; }
  bool broken() const { return !violation_.empty(); }

  NodeId add_node();
  /// The node's events wait until resume().
  void pause(NodeId node);
  void resume(NodeId node);
  bool paused(NodeId node) const { return nodes_[node].paused; }
  /// Since when the node has been running without a stop; now() while it is stopped.
  Instant awake_since(NodeId node) const;
  /// How long its last stop was that began after `since`; zero: there was none.
  Duration stood_still(NodeId node, Instant since) const;

 private:
  friend class Scope;
  /// Small, because a heap moves its elements about.
  struct Event {
    Instant time;
    std::uint64_t order = 0;
    std::uint32_t scope = 0;
    std::uint32_t action = 0;  ///< in actions_
  };
  struct Node {
    bool paused = false;
    Instant stopped_at{};
    Instant awake_since{};
    std::vector<Event> parked;
  };
  struct ScopeState {
    NodeId node = 0;
    bool alive = false;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  void push(Instant time, std::uint32_t scope, std::function<void()> action);
  void queue(Event event);
  std::function<void()> take_action(const Event& event);
  void mix(std::uint64_t value);

  Rng rng_;
  bool trace_;
  Instant now_{};
  std::uint64_t next_order_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0xCBF29CE484222325;
  std::string violation_;
  std::vector<Event> queue_;  ///< a heap
  std::vector<std::function<void()>> actions_;
  std::vector<std::uint32_t> free_actions_;  ///< indexes into actions_
  std::vector<Node> nodes_;
  std::vector<ScopeState> scopes_;
};

/// Events that belong to one object: they are forgotten with it, and wait while its node is
/// stopped.
class Scope {
 public:
  Scope(World& world, NodeId node);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void after(Duration delay, std::function<void()> action);
  /// Soon: from the event loop and not from inside the caller.
  void soon(std::function<void()> action) { after(Duration::zero(), std::move(action)); }

 private:
  World& world_;
  std::uint32_t id_;
};

}  // namespace sim
