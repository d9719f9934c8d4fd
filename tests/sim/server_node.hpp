// The simulated server machine: its process with all sessions, which can die and come back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/checker.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/wire.hpp"

namespace sim {

class ServerProcess;

class ServerNode {
 public:
  ServerNode(World& world, const Knobs& knobs, std::vector<Disk>& disks, Checker& checker);
  ~ServerNode();

  NodeId node() const { return node_; }
  void start();
  bool running() const { return process_ != nullptr; }
  /// The process ends at once; with `power_loss` the disks forget what was not durable.
  void kill(bool power_loss);
  /// Waits a little for running requests, then ends.
  void stop();
  void calm();

  /// A connect record has arrived at this machine.
  void accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record);
  /// Which node a client's session belongs to.
  void introduce(std::uint64_t session, NodeId client);

  /// Nothing is left of any session; else says what.
  std::string leftovers();

 private:
  World& world_;
  const Knobs& knobs_;
  std::vector<Disk>& disks_;
  Checker& checker_;
  NodeId node_;
  Scope scope_;
  bool calm_ = false;
  std::vector<NodeId> clients_;  ///< by session
  std::unique_ptr<ServerProcess> process_;
  std::optional<Scope> stopping_;
};

}  // namespace sim
