// SPDX-License-Identifier: BSD-3-Clause
// The simulated server machine: its process with all sessions, which can die and come back.
#pragma once

#include <array>
#include <map>
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

class KeptReservations;
class ServerProcess;

/// By the UUIDs of the storages.
using WriterRecords = std::map<rnbd::wire::Uuid, rnbd::WriterRecord>;

class ServerNode {
 public:
  /// `original`: null, or the server that clients mean, when they do not mean this one.
  ServerNode(World& world, const Knobs& knobs, Disks& disks, Checker& checker,
             const ServerNode* original);
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
  /// The generation that a clone tells the session which comes next, as
  /// DeviceInfoResponse::found_generation.
  std::uint64_t generation(unsigned slot, bool to_writer) const;

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
  void receive(std::uint64_t visitor);
  std::uint16_t queue_depth() const;

  World& world_;
  const Knobs& knobs_;
  Disks& disks_;
  Checker& checker_;
  const ServerNode* const original_;
  NodeId node_;
  Scope scope_;
  std::uint64_t volatile_epoch_;  ///< another one after each loss of power
  std::array<rtrs::wire::PathAccess, kListeners> access_{};  ///< what an administrator wants
  bool calm_ = false;
  unsigned starts_ = 0;
  std::vector<unsigned> exports_;  ///< slot -> number of the disk that is served
  std::vector<NodeId> clients_;    ///< by session
  std::shared_ptr<KeptReservations> reservations_;
  WriterRecords copied_;       ///< of a clone: the records of the original when it was made
  std::uint64_t visitor_ = 0;  ///< of a clone: the session that it has let in last
  std::unique_ptr<ServerProcess> process_;
  std::optional<Scope> stopping_;
};

}  // namespace sim
