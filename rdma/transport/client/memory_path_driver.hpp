// SPDX-License-Identifier: BSD-3-Clause
// A memory path of a client in operation: its connections, its heartbeat, its lanes.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rdma/memory_path.hpp"
#include "rdma/transport/client/memory_lane.hpp"
#include "rdma/transport/client/path_driver.hpp"

namespace rtrs {

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
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
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
