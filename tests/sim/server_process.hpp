// SPDX-License-Identifier: BSD-3-Clause
// One life of the simulated server: the shipped admission, sessions and RNBD logic on simulated
// storage.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/server/block_server.hpp"
#include "rdma/core/admission.hpp"
#include "tests/sim/admission_ledger.hpp"
#include "tests/sim/server_host.hpp"
#include "tests/sim/storage.hpp"
#include "tests/sim/watching_handler.hpp"

namespace sim {

/// One life of a server, as its clients see it.
struct ServerFace {
  NodeId node = 0;
  std::uint64_t id = 0;  ///< who it says it is
  std::uint64_t volatile_epoch = 0;
  bool foreign = false;  ///< no client means it
};

class ServerProcess {
 public:
  ServerProcess(World& world, const Knobs& knobs, std::uint16_t queue_depth, Disks& disks,
                const std::vector<unsigned>& exports, Checker& checker, const ServerFace& face,
                std::shared_ptr<rnbd::WriterStore> reservations);
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  void accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record, NodeId client);
  /// Some strangers say hello and nothing more: for sessions of their own, or for one whose uuids
  /// they have seen on the way.
  void knock();
  void drain();
  /// Every connection is closed and everything that runs ends; then this can be destroyed.
  void kill();
  void calm();
  void set_access(unsigned listener, rtrs::wire::PathAccess access);
  bool idle() const { return hosts_.empty(); }
  std::string leftovers();

 private:
  class Threads;
  using SessionId = rtrs::Admission::SessionId;
  using PathId = rtrs::Admission::PathId;

  void judge(std::shared_ptr<Wire> wire, const rtrs::wire::ConnectParameters& parameters,
             NodeId client, const std::string& from);
  void check_counts();
  void check_loans();
  std::uint64_t memory_of_path(const rtrs::ServerSessionOptions& session) const;
  void check_starved(const rtrs::wire::ConnectParameters& parameters, bool proves,
                     bool inaccessible);
  ServerHost& create_host(SessionId id, const rtrs::wire::ConnectParameters& parameters,
                          std::uint64_t serial, NodeId client);
  rtrs::Admission::Admitted admit(SessionId id, PathId path, std::string_view name,
                                  std::optional<std::string_view> user);
  void spare_soon(rtrs::Admission::Place spared, rtrs::Admission::Place taker);
  void turn_away_soon(rtrs::Admission::Place half_open);
  void forget_path_soon(SessionId id, PathId path);
  void forget_soon(SessionId id);
  std::unique_ptr<rnbd::Services> make_services(const Knobs& knobs);
  using Jobs = std::map<std::uint64_t, std::function<void()>>;
  void run(Jobs& jobs, std::uint64_t job);
  bool may_hang();
  void hang(std::function<void()> work, std::function<void()> then);
  std::string stuck_writers();
  rnbd::CatalogueOptions catalogue_options(std::shared_ptr<rnbd::WriterStore> reservations);

  World& world_;
  const Knobs& knobs_;
  const Disks& disks_;
  const std::vector<unsigned> exports_;  ///< numbers of the disks, by slot
  Checker& checker_;
  NodeId node_;
  const bool clone_;
  std::shared_ptr<rtrs::auth::ServerKeys> keys_;
  bool calm_ = false;
  rtrs::ServerSessionOptions session_options_;
  std::array<rtrs::wire::PathAccess, kListeners> access_{};
  rtrs::MemoryAccount account_;
  std::uint64_t lent_ = 0;  ///< when it was looked at last
  rtrs::Admission admission_;
  AdmissionLedger ledger_;
  DoorLedger door_;
  Storage storage_;
  rnbd::ExportCatalogue catalogue_;
  std::unique_ptr<rnbd::Services> services_;
  rnbd::BlockServer block_server_;
  OpenChunks open_chunks_;
  WatchingHandler handler_;
  std::map<SessionId, std::unique_ptr<ServerHost>> hosts_;
  /// The newest connect request of a client, and whose it is.
  struct Seen {
    rtrs::wire::ConnectParameters parameters;
    std::uint64_t serial = 0;
    NodeId client = 0;
  };
  std::optional<Seen> seen_;
  Jobs offloaded_;  ///< what other threads would do
  Jobs timed_;      ///< what waits for its time; a process that is killed does it at once
  std::uint64_t next_job_ = 0;
  Scope scope_;  // last: goes first
};

}  // namespace sim
