// SPDX-License-Identifier: BSD-3-Clause
// The client session in operation: one background thread, the paths, the lanes.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/machine.hpp"
#include "rdma/path_list.hpp"
#include "rdma/transport/client_notices.hpp"
#include "rdma/transport/lane_driver.hpp"
#include "rdma/transport/path_driver.hpp"

namespace rtrs {

/// Performs the actions of a ClientMachine and reports events to it.
///
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
  std::vector<PathStatus> paths() override;
  Duration time_without_path() override;
  ServerId server_id() override;
  tl::expected<void, Failure> add_path(const PathAddress& path) override;
  tl::expected<void, Failure> remove_path(const PathAddress& path) override;
  tl::expected<void, Failure> disconnect(const PathAddress& path) override;
  tl::expected<void, Failure> reconnect(const PathAddress& path) override;
  void set_policy(PathPolicy policy) override;
  tl::expected<void, Failure> register_memory(MutableBytes memory) override;
  tl::expected<void, Failure> forget_memory(MutableBytes memory) override;
  tl::expected<std::unique_ptr<MemoryPath>, Failure> open_memory_path(
      const PathAddress& address, const Interrupt& interrupt) override;
  int run(Operation& operation, const Interrupt& interrupt) override;
  int run_control(Operation& operation, const Interrupt& interrupt) override;
  bool start_control(Operation& operation) override;
  bool cancel_control(Operation& operation) override;
  unsigned lanes() const override { return static_cast<unsigned>(lanes_.size()); }
  std::unique_ptr<LaneLoop> take_lane(unsigned lane) override { return lanes_[lane]->open_loop(); }

 private:
  // client_driver_actions.cpp: the executor of the machine
  void feed_on_io(const ClientEvent& event);
  void perform_all_on_io();
  void perform_on_io(const ClientAction& action);
  void perform_on_lanes_on_io(const ClientAction& action);
  void look_on_io();
  void schedule_look_on_io();

  // client_driver.cpp: the session
  void run_background_thread();
  void call_on_io(const std::function<void()>& function);
  void wait_for_deadline_on_io();
  PathMask paths_on_io(const std::function<bool(unsigned path)>& are) const;
  PathMask waiting_paths_on_io() const;
  void note_attempt_on_io(unsigned path, const std::string& why) const;
  void note_waiting_paths_on_io() const;
  void note_late_paths_on_io() const;
  void up_on_io();
  void say_goodbye_on_io();
  void fail_on_io(Failure failure);
  void fail_on_io(const Cause& cause) { fail_on_io(notices_.failure_of(cause)); }
  void close_on_io();
  void report(const Notice& notice);

  // client_driver_control.cpp: what others see and change of it
  tl::expected<void, Failure> change(const std::function<tl::expected<void, Failure>()>& step);
  PathStatus status_on_io(unsigned path);
  PathList staying_on_io() const;
  std::optional<unsigned> find_on_io(const PathAddress& address) const;
  bool others_have_led_there_on_io(unsigned path) const;

  // client_driver_memory.cpp
  tl::expected<void, Failure> register_on_io(MutableBytes memory);
  void forget_on_io(MutableBytes memory);
  ConnectOptions connect_options(const PathAddress& address, Duration patience) const;
  void register_all_on_io(unsigned path, Connection& connection) const;

  // client_driver_time.cpp
  void give_up_changes_on_io(unsigned path);
  void fail_overdue_on_io();
  int error_without_path(const ClientLane& lane) const;
  int error_without_path() const;
  void report_held_opens_on_io();
  void report_held_writes_on_io();
  void ask_for_background_jobs_on_io();

  // client_driver_paths.cpp: paths that come and go
  void connect_on_io(unsigned path);
  void attach_on_io(unsigned path);
  void lose_on_io(unsigned path, unsigned life, const Cause& cause);
  void close_path_on_io(unsigned path);
  void detach_on_io(unsigned path);
  void report_statistics(unsigned path) const;
  void first_attempt_failed_on_io(unsigned path, const Cause& cause);
  void run_background_job_on_io();
  void background_job_ended_on_io();
  void cancel_slow_background_job_on_io();
  void flush_control_on_io();
  void create_lanes_on_io(unsigned path);
  bool heard_on_io(unsigned path);
  bool is_bound_on_io(unsigned path);
  void for_each_lane(const std::function<void(ClientLane&)>& function);

  // client_driver_renewal.cpp
  void recover_on_io(unsigned path);
  void recovered_on_io();

  /// A path between its lives is null.
  struct Path {
    std::shared_ptr<PathDriver> driver;
    std::shared_ptr<HostLookup> lookup;  ///< kept, for what it remembers
  };
  /// A new session that is being filled.
  struct Renewal {
    unsigned path = 0;
    bool broken = false;
    std::unique_ptr<ClientLane> lane;
    std::unique_ptr<Operation> operation;
  };

  ClientOptions options_;  ///< `paths`: by their numbers, those that are free as well
  ClientNotices notices_;
  SessionLimits limits_;  ///< constant once alive

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer look_timer_;
  boost::asio::steady_timer background_timer_;
  ClientMachine machine_;
  ClientSession& session_;   ///< the machine's
  bool performing_ = false;  ///< an action: those that it leads to are performed behind it
  std::array<Path, kMaxPaths> paths_;
  std::unique_ptr<Renewal> renewal_;
  std::unique_ptr<Operation> background_job_;  ///< of the recovery handler, on the control lane
  Instant background_since_{};
  Unresolved unresolved_;
  Unresolved control_unresolved_;
  std::unique_ptr<ClientLane> control_lane_;
  std::vector<std::unique_ptr<LaneDriver>> lanes_;  ///< constant once alive
  std::vector<MutableBytes> memories_;              ///< of callers; for the paths that will come
  ClientNotices::Lateness lateness_;                ///< not up yet: its last attempts
  LastingCondition opens_wait_;                     ///< the control lane holds back its requests
  LastingCondition writes_wait_;                    ///< lanes of I/O do
  bool closed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool settled_ = false;  ///< up or failed
  Failure failure_;
  std::atomic<bool> alive_{false};
  std::thread thread_;
};

}  // namespace rtrs
