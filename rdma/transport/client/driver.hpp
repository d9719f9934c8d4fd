// SPDX-License-Identifier: BSD-3-Clause
// The client of a session at run time: a background thread, connections and lanes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/machine.hpp"
#include "rdma/transport/client/background_jobs.hpp"
#include "rdma/transport/client/lanes.hpp"
#include "rdma/transport/client/notices.hpp"
#include "rdma/transport/client/path_drivers.hpp"
#include "rdma/transport/client/session_outcome.hpp"
#include "rdma/transport/client/session_recovery.hpp"

namespace rtrs {

/// The executor of a ClientMachine: performs its actions, and reports events to it. For that it has
/// a thread, a clock and the session's connections. A member of its own does each kind of work.
///
/// Threads: public functions as Client's; those named *_on_io on the background thread.
class ClientDriver final : public Client, public PathDriverOwner, public ClientLanesOwner {
 public:
  explicit ClientDriver(ClientOptions options);
  ~ClientDriver() override;

  /// Waits until the session is up or has failed.
  ///
  /// Errors: as Client::connect().
  tl::expected<void, Failure> establish(const Interrupt& interrupt);

  const SessionLimits& limits() const override { return limits_; }
  bool alive() const override { return outcome_.alive(); }
  std::string failure() const override { return outcome_.failure(); }
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
  unsigned lanes() const override { return lanes_.count(); }
  std::unique_ptr<LaneLoop> take_lane(unsigned lane) override {
    return lanes_.io(lane).open_loop();
  }

 private:
  // driver_actions.cpp: the machine's actions
  void feed_on_io(const ClientEvent& event);
  void perform_all_on_io();
  void perform_on_io(const ClientAction& action);
  void look_on_io();
  void schedule_look_on_io();
  void watch_races_on_io();
  void schedule_race_on_io();
  void look_at_races_on_io();

  // driver.cpp: the session
  void run_background_thread();
  void call_on_io(const std::function<void()>& function);
  void wait_for_deadline_on_io();
  void up_on_io();
  void fail_on_io(Failure failure);
  void close_on_io();

  // driver_control.cpp: status and commands
  tl::expected<void, Failure> change(const std::function<tl::expected<void, Failure>()>& step);
  PathStatus status_on_io(unsigned path);

  // driver_actions.cpp: paths that come and go
  void connect_on_io(unsigned path);
  void attach_on_io(unsigned path);
  void lose_on_io(PathLife life, const Cause& cause);
  void recover_on_io(unsigned path);
  void recovered_on_io();

  // driver_actions.cpp: for its paths and lanes
  void on_ready(PathLife life) override;
  void on_lost(PathLife life, const Failure& failure) override;
  bool on_heartbeat(PathLife life) override;
  void on_latency(PathLife life, Duration latency) override;
  void on_access(PathLife life) override;
  void on_recall() override;
  void flush_all() override { paths_.flush(); }
  void on_broken(PathLife life, std::string why) override;
  void on_busy() override;
  /// To close what could not be closed.
  void on_resolved() override { jobs_.run(); }

  ClientOptions options_;  ///< `paths`: by path number, also those whose number is free
  ClientNotices notices_;
  SessionLimits limits_;  ///< constant once the session is up

  Reactor reactor_{0};
  boost::asio::io_context& io_{reactor_.io()};
  Alarm deadline_{reactor_.alarms()};
  Alarm next_look_{reactor_.alarms()};
  Alarm next_race_{reactor_.alarms()};
  bool watches_races_ = false;
  unsigned calm_looks_ = 0;  ///< in a row, at races without a change
  ClientMachine machine_;
  ClientSession& session_;   ///< the machine's
  bool performing_ = false;  ///< an action; further actions come after it, not within it
  PathDrivers paths_;
  PathDirectory directory_;
  ClientLanes lanes_;
  RegisteredMemory memory_;  ///< the callers'
  FirstAttempts attempts_;
  HeldRequests held_;
  BackgroundJobs jobs_;
  std::unique_ptr<SessionRecovery> recovery_;  ///< while devices are opened in a new session
  bool closed_ = false;
  SessionOutcome outcome_;
  std::thread thread_;
};

}  // namespace rtrs
