// SPDX-License-Identifier: BSD-3-Clause
// A memory path of a client in operation: its connections, its heartbeat, its lanes, which those
// who wait for them drive.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/memory_path.hpp"
#include "rdma/transport/client/path_driver.hpp"
#include "rdma/transport/connection.hpp"

namespace rtrs {

/// One connection of a memory path. Cuts transfers into pieces that fit into windows, and has
/// several of them under way.
///
/// Threads: any.
class MemoryLane final : public QueuePairHandler {
 public:
  /// With kMemoryWindows windows. `on_broken` is called once at most, from any thread.
  MemoryLane(std::unique_ptr<Connection> connection, std::function<void(std::string)> on_broken);

  /// Errors: EIO, EINTR; see MemoryPath.
  int read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt);
  int write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt);
  /// A read behind all writes that have ended pushes them out of the server's device.
  int settle(RemoteMemory readable, const Interrupt& interrupt);
  int write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt);

  tl::expected<void, Failure> register_memory(MutableBytes memory);
  void forget_memory(MutableBytes memory);

  /// Something has come since it was asked last.
  bool heard() { return heard_.exchange(false); }
  /// Ends the connection: the transport touches nobody's memory from here on.
  void close(const std::string& why);

 private:
  /// One caller's read or write. Of `into` and `from` one is used.
  struct Transfer {
    RemoteMemory where;
    MutableBytes into;
    ConstBytes from;
    bool is_read;
    std::size_t posted = 0;  ///< bytes
    unsigned under_way = 0;  ///< pieces
    std::size_t size() const { return is_read ? into.size() : from.size(); }
    bool done() const { return posted == size() && under_way == 0; }
  };
  /// In the order of posting.
  struct Piece {
    Ticket ticket = 0;
    Transfer* transfer = nullptr;
    MutableBytes into;     ///< a read: where the caller wants it
    MutableBytes landing;  ///< and where it lands
  };

  int run(std::span<Transfer> transfers, const Interrupt& interrupt);
  void post(std::span<Transfer> transfers);
  void post_piece(Transfer& transfer, std::size_t size);
  bool drive(std::unique_lock<std::mutex>& lock);
  void take_arrivals();
  void break_off(std::string why);
  [[nodiscard]] Complaint on_done(Ticket ticket) override;
  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t, std::uint32_t) override {
    return "an immediate on a connection for memory";
  }
  [[nodiscard]] Complaint on_message(ConstBytes, std::optional<std::uint32_t>) override {
    return "a message on a connection for memory";
  }

  std::mutex mutex_;  ///< guards all but heard_
  std::condition_variable changed_;
  std::unique_ptr<Connection> connection_;
  std::function<void(std::string)> on_broken_;
  std::array<Piece, kMemoryWindows> pieces_;
  std::size_t first_ = 0;  ///< of pieces_, modulo its size
  std::size_t end_ = 0;
  std::uint64_t written_ = 0;  ///< pieces of writes that have ended
  std::uint64_t settled_ = 0;  ///< those of them that were followed by a read
  bool driven_ = false;        ///< some caller waits for arrivals
  bool broken_ = false;
  std::atomic<bool> heard_{false};
};

/// Threads: as MemoryPath. Functions that end in _on_io run on its own thread, which keeps the
/// heartbeat.
class MemoryPathDriver final : public MemoryPath, public PathDriverOwner {
 public:
  MemoryPathDriver(ClientPathOptions path, ConnectOptions connect, Duration timeout);
  ~MemoryPathDriver() override;
  MemoryPathDriver(const MemoryPathDriver&) = delete;
  MemoryPathDriver& operator=(const MemoryPathDriver&) = delete;

  /// Errors: those of the connections, the server's refusal, EINTR.
  tl::expected<void, Failure> establish(const Interrupt& interrupt);

  const wire::Uuid& uuid() const override { return uuid_; }
  bool alive() const override { return alive_; }
  std::string failure() const override;
  int read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt) override;
  int write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) override;
  int settle(RemoteMemory readable, const Interrupt& interrupt) override;
  int write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) override;
  tl::expected<void, Failure> register_memory(MutableBytes memory) override;
  void forget_memory(MutableBytes memory) override;

 private:
  void run_thread();
  void start_on_io();
  void note_failure(const Failure& failure);
  void lost_on_io(const Failure& failure);
  MemoryLane* next_lane();

  // For its only path
  void on_ready(PathLife) override;
  void on_lost(PathLife, const Failure& failure) override { lost_on_io(failure); }
  bool on_heartbeat(PathLife) override;
  void on_latency(PathLife, Duration) override {}
  void on_access(PathLife) override { core_.acknowledge_access(); }
  void on_recall() override {}
  void flush_all() override {}

  const wire::Uuid uuid_;
  ConnectOptions connect_;
  std::string session_name_;
  Duration timeout_;
  Reactor reactor_{0};
  ClientPath core_;
  std::shared_ptr<PathDriver> driver_;
  std::vector<std::unique_ptr<MemoryLane>> lanes_;  ///< constant once it is alive
  std::atomic<unsigned> next_{0};
  std::atomic<bool> alive_{false};

  mutable std::mutex mutex_;  ///< guards the following members:
  std::condition_variable changed_;
  bool settled_ = false;  ///< up or failed
  Failure failure_;
  std::thread thread_;
};

}  // namespace rtrs
