// SPDX-License-Identifier: BSD-3-Clause
// The one session that all NBD connections of this nbdkit share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/session.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {

/// The session as it is now.
struct SessionStatus {
  std::string name;              ///< at the server; "" = there is none now
  std::string trouble;           ///< why there is none; "" = nobody has asked for it yet
  rtrs::ServerId server_id = 0;  ///< 0 = not known
  rtrs::PathPolicy policy{};
  std::optional<rtrs::SessionLimits> limits;  ///< none without a session
  std::vector<rtrs::PathStatus> paths;        ///< without a session: those that it will have
  rtrs::Duration without_path{};              ///< in all, since the session began
  rtrs::Duration without_path_now{};          ///< while no path takes requests; 0: not yet known
  std::vector<DeviceStatus> devices;          ///< also those of sessions that were lost
};

/// Why paths did not come, while a session is being connected and after that has failed.
///
/// Threads: any.
class FailedAttempts {
 public:
  void clear() {
    const std::lock_guard lock{mutex_};
    why_.clear();
  }
  void note(const rtrs::PathAddress& path, const std::string& why) {
    const std::lock_guard lock{mutex_};
    why_[to_string(path)] = why;
  }
  std::string at(const rtrs::PathAddress& path) const {
    const std::lock_guard lock{mutex_};
    const auto found = why_.find(to_string(path));
    return found != why_.end() ? found->second : "";
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> why_;
};

/// Connects when the session is first asked for, and anew when it has died.
///
/// Threads: any.
class SharedSession {
 public:
  SharedSession(const ClientConfig& config, rtrs::Log log);

  /// Callers that ask during an attempt to connect share that attempt and its failure.
  tl::expected<std::shared_ptr<Session>, Failure> get(const Interrupt& interrupt);

  SessionStatus status();
  /// True if there is a session with a path that takes requests.
  bool has_path();
  /// These change the present session, and every later one.
  ///
  /// Errors: as rtrs::Client; sentences with the remedy.
  tl::expected<void, Failure> add_path(const rtrs::PathAddress& path);
  tl::expected<void, Failure> remove_path(const rtrs::PathAddress& path);
  tl::expected<void, Failure> disconnect(const rtrs::PathAddress& path);
  tl::expected<void, Failure> reconnect(const rtrs::PathAddress& path);
  void set_policy(rtrs::PathPolicy policy);

  /// True for a while after a new session took the place of a dead one: the server may still hold
  /// the devices of the dead one.
  bool replaced_lately();

  /// Ends the session. Nobody may ask for it any more.
  void leave();

  /// Connects once, for a look: it keeps nothing but the server's identity. Returns when every path
  /// has been tried, or after the connect timeout; the log names those that do not work.
  ///
  /// Errors: as Session::connect(); ESTALE (a path leads to another server).
  tl::expected<std::shared_ptr<Session>, Failure> connect_for_probe();

 private:
  tl::expected<void, Failure> try_all_paths(rtrs::Client& client) const;

  /// The configuration, and its later changes.
  struct Wanted {
    rtrs::PathList paths{{}};
    std::vector<rtrs::PathAddress> disconnected;
    rtrs::PathPolicy policy{};
    rtrs::PathAddress naming;      ///< rtrs::ClientOptions
    rtrs::ServerId server_id = 0;  ///< likewise; of the newest session
  };

  tl::expected<rtrs::ClientOptions, Failure> options(const std::string& name_suffix,
                                                     const Wanted& wanted) const;
  tl::expected<std::shared_ptr<Session>, Failure> connect(const Wanted& wanted,
                                                          const Interrupt& interrupt);
  tl::expected<void, Failure> change(
      const std::function<tl::expected<void, Failure>(Wanted&)>& wish,
      const std::function<tl::expected<void, Failure>(rtrs::Client&)>& step);
  void bring_up_to_date(Session& session);
  void learn_paths(Session& session, const Interrupt& interrupt);
  void add_advertised(Session& session, const rtrs::PathAddress& path);
  void say(rtrs::LogLevel level, const std::string& line) const;
  void name_another();
  static void add_lost_devices(const Session& lost, std::vector<DeviceStatus>& devices);

  const ClientConfig& config_;
  rtrs::Log log_;
  /// Shared with sessions, which may outlive this.
  const std::shared_ptr<FailedAttempts> failed_attempts_ = std::make_shared<FailedAttempts>();
  /// When a path was lost last, or was called inaccessible; in shared hands likewise.
  using LossTime = std::atomic<std::chrono::steady_clock::time_point>;
  const std::shared_ptr<LossTime> path_lost_at_ = std::make_shared<LossTime>();
  std::mutex control_mutex_;  ///< taken to change the session's paths; taken before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Session> session_;                     ///< guarded by mutex_
  std::vector<std::weak_ptr<Session>> lost_;             ///< some may be used; guarded by mutex_
  bool connecting_ = false;                              ///< guarded by mutex_
  std::uint64_t attempts_ = 0;                           ///< ended ones; guarded by mutex_
  Failure last_failure_;                                 ///< of the last attempt; guarded by mutex_
  std::chrono::steady_clock::time_point replaced_at_{};  ///< guarded by mutex_
  bool replaced_ = false;                                ///< guarded by mutex_
  bool learned_ = false;                                 ///< learn_paths(); guarded by mutex_
  std::string name_;                                     ///< of session_; guarded by mutex_
  Wanted wanted_;                                        ///< guarded by mutex_
  std::uint64_t changes_ = 0;                            ///< of wanted_; guarded by mutex_
};

}  // namespace rnbd
