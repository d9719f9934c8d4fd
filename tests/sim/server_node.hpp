// SPDX-License-Identifier: BSD-3-Clause
// The simulated server machine: its process with all sessions, which can die and come back.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/server/writer_reservations.hpp"
#include "rdma/wire/handshake.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/wire.hpp"

namespace sim {

class ServerProcess;

class ServerNode {
 public:
  /// `foreign`: one that no client means.
  ServerNode(World& world, const Knobs& knobs, Disks& disks, Checker& checker, bool foreign);
  ~ServerNode();

  NodeId node() const { return node_; }
  /// The server's identity; another one with each start if it cannot keep it.
  std::uint64_t id() const;
  void start();
  bool running() const { return process_ != nullptr; }
  /// The process ends at once; with `power_loss` the disks forget what was not durable.
  void kill(bool power_loss);
  /// Waits a little for running requests, then ends.
  void stop();
  void calm();
  /// Changes what the process thinks of all paths that come in by a listener; another process has
  /// its own opinion.
  void set_access(unsigned listener, rtrs::wire::PathAccess access);
  /// Which disk a client means that names this export now.
  unsigned disk_of(unsigned slot) const { return exports_[slot]; }

  /// A connect record has arrived at this machine.
  void accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record);
  /// A stranger comes, see ServerProcess::knock().
  void knock();
  /// Which node a client's session belongs to.
  void introduce(std::uint64_t session, NodeId client);

  /// Nothing is left of any session; else says what.
  std::string leftovers();

 private:
  void replace_something();
  std::uint16_t queue_depth() const;

  World& world_;
  const Knobs& knobs_;
  Disks& disks_;
  Checker& checker_;
  const bool foreign_;
  NodeId node_;
  Scope scope_;
  std::uint64_t volatile_epoch_;  ///< another one after each loss of power
  std::array<rtrs::wire::PathAccess, kListeners> access_{};  ///< what an administrator wants
  bool calm_ = false;
  unsigned starts_ = 0;
  std::vector<unsigned> exports_;  ///< slot -> number of the disk that is served
  std::vector<NodeId> clients_;    ///< by session
  std::shared_ptr<rnbd::WriterStore> reservations_;
  std::unique_ptr<ServerProcess> process_;
  std::optional<Scope> stopping_;
};

}  // namespace sim
