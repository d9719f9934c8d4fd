// SPDX-License-Identifier: BSD-3-Clause
// The storage of a simulated server: slow, failing, out of order, and it forgets when power is
// lost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/disk.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// The operations at the disks during one run of the server.
///
/// An operation executes in up to three pieces at different moments between submit() and done(), so
/// that data which is taken or given too early or too late is seen.
class Storage {
 public:
  Storage(World& world, const StorageKnobs& knobs, Disks& disks, Checker& checker, NodeId server);

  /// Storage for ExportCatalogue.
  std::unique_ptr<rnbd::Backend> open(unsigned disk, bool read_only);
  // For its queues.
  std::uint64_t open_queue();
  void close_queue(std::uint64_t queue);
  bool is_broken(std::uint64_t queue) const { return queues_[queue].broken; }
  void submit(std::uint64_t queue, unsigned disk, rnbd::BackendRequest& request);
  /// From now on nothing fails or stalls.
  void calm();
  std::size_t running() const { return running_.size(); }
  /// The server process dies: what runs is executed or not, and everything ends.
  void kill();

 private:
  struct Queue {
    bool open = true;
    bool broken = false;  ///< fails for ever; who opens the disk anew gets another one
    unsigned running = 0;
  };
  struct Running {
    std::uint64_t queue = 0;
    unsigned disk = 0;
    rnbd::BackendRequest* request = nullptr;
    Action action = Action::read;
    std::uint64_t first = 0;  ///< sector
    std::uint64_t count = 0;
    unsigned pieces = 1;
    unsigned executed = 0;    ///< pieces
    unsigned to_execute = 1;  ///< pieces; fewer when it fails
    int error = 0;
    std::vector<std::uint32_t> covers;     ///< a flush: positions to make durable
    std::vector<std::uint32_t> positions;  ///< a change: what it did to each sector
  };

  void check(const Disk& disk, const rnbd::BackendRequest& request);
  Running prepare(std::uint64_t queue, unsigned disk, rnbd::BackendRequest& request);
  void plan_failure(Running& running);
  void fail(Running& running, int error, unsigned pieces);
  Duration delay();
  void advance(std::uint64_t id);
  void execute_piece(Running& running);
  void execute_sector(Running& running, std::uint64_t index);
  void finish(std::uint64_t id);
  void make_durable(const Running& running);
  void answer_extents(const Running& running);

  World& world_;
  const StorageKnobs& knobs_;
  Disks& disks_;
  Checker& checker_;
  Scope hardware_;  ///< goes on while the server is stopped
  Scope server_;    ///< the server learns of it
  bool calm_ = false;
  std::vector<std::uint64_t> hung_;  ///< that do not go on before it is calm
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Running> running_;
  std::vector<Queue> queues_;  ///< by number
};

}  // namespace sim
