// The client session in operation: one background thread, the path, the lanes.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client_path.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/lane_driver.hpp"

namespace rtrs {

/// Threads: run() and the getters any; what is named *_on_io runs on the background thread.
class ClientDriver final : public Client {
 public:
  explicit ClientDriver(ClientOptions options);
  ~ClientDriver() override;

  /// Waits until the session is up or failed.
  tl::expected<void, Failure> establish(const Interrupt& interrupt);

  const SessionLimits& limits() const override { return limits_; }
  bool alive() const override { return alive_.load(std::memory_order_acquire); }
  std::string failure() const override;
  int run(Operation& operation, const Interrupt& interrupt) override;
  int run_control(Operation& operation, const Interrupt& interrupt) override;

 private:
  boost::asio::awaitable<void> connect_on_io();
  boost::asio::awaitable<tl::expected<void, Failure>> connect_all_on_io();
  Failure refusal_on_io(Complaint complaint) const;
  void wait_for_control_on_io();
  void flush_control_on_io();
  void progress_control_on_io();
  void up_on_io();
  void schedule_tick_on_io();
  void tick_on_io();
  void fail_on_io(Failure failure);
  void close_on_io();
  void log(LogLevel level, const std::string& text) const;

  ClientOptions options_;
  std::string server_;  ///< for messages
  ClientPath path_;
  SessionLimits limits_;

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::posix::stream_descriptor control_descriptor_;
  bool control_writing_ = false;
  std::shared_ptr<PathContext> context_;  ///< what the transport keeps for the path
  std::unique_ptr<Connection> control_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< while connecting
  std::unique_ptr<ClientLane> control_lane_;
  std::vector<std::unique_ptr<LaneDriver>> lanes_;  ///< constant once alive
  bool closed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool settled_ = false;  ///< up or failed
  Failure failure_;
  std::atomic<bool> alive_{false};
  std::thread thread_;
};

}  // namespace rtrs
