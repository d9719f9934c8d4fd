// SPDX-License-Identifier: BSD-3-Clause
// The faults of a run, and the end of them.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/client_node.hpp"
#include "tests/sim/network.hpp"
#include "tests/sim/server_node.hpp"

namespace sim {

class Nemesis {
 public:
  Nemesis(World& world, const Knobs& knobs, Network& network, ServerNode& server,
          std::vector<std::unique_ptr<ClientNode>>& clients);

  void start();
  /// No further faults. A dead part stays dead until that is noticed; a stopped one goes on.
  void heal();

 private:
  void schedule();
  void strike();
  void schedule_access();
  void schedule_obstacle();
  void obstruct();
  Obstacle draw_obstacle();
  std::shared_ptr<Wire> pick_wire();
  unsigned draw_extent(unsigned whole_path);
  static bool is_hit(const Wire& other, const Wire& wire, unsigned extent);
  void cut();
  void cut_late();
  void cut_unread();
  void silence();
  void mute();
  void stall();
  void hush();
  void hush_in_turn(const Wire& spared);
  void pause(NodeId node, Duration longest);
  void send_stale_copy();
  void pause();
  void restart();
  void start_again();

  World& world_;
  const Knobs& knobs_;
  Network& network_;
  ServerNode& server_;
  std::vector<std::unique_ptr<ClientNode>>& clients_;
  Scope scope_;
  bool healed_ = false;
  bool restarting_ = false;
};

}  // namespace sim
