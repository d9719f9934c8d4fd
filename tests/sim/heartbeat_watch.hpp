// SPDX-License-Identifier: BSD-3-Clause
// Judges the verdicts of one end of a path: a silent peer must be found dead in time, a live one
// never.
#pragma once

#include <string>

#include "tests/sim/knobs.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Lives as long as its end of the path is connected.
class HeartbeatWatch {
 public:
  HeartbeatWatch(World& world, const Knobs& knobs, std::string who, NodeId self, NodeId peer);

  /// Something of the peer was looked at.
  void heard() { last_heard_ = world_.now(); }
  /// This end has declared its peer dead; `disturbed`: a connection of the path lost messages.
  void dead(bool disturbed);

 private:
  void check();

  World& world_;
  const Knobs& knobs_;
  std::string who_;
  NodeId self_;
  NodeId peer_;
  Scope scope_;
  Instant last_heard_;
};

}  // namespace sim
