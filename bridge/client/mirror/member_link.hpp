// SPDX-License-Identifier: BSD-3-Clause
// The connection to one member of a mirror. It makes a session, and a new one after each end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "bridge/client/mirror/server_table.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"
#include "bridge/protocol/mirror_messages.hpp"

namespace rnbd::mirror {

class MemberLink;

/// A member with its device open for writing, in one session.
struct OpenMember {
  MemberLink* link = nullptr;                  ///< which made it, and closes it
  std::shared_ptr<const ClientConfig> config;  ///< used by the session
  std::shared_ptr<SharedSession> shared;
  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteDevice> device;

  const DeviceGeometry& geometry() const { return device->geometry(); }
};

struct MemberRole {
  wire::MemberKind kind = wire::MemberKind::disk;
  std::uint32_t features = wire::kFeatureMirror | wire::kFeatureMirrorDisks;  ///< it must have
};

/// Connects on a thread of its own, because connecting blocks.
///
/// Threads: any.
class MemberLink {
 public:
  using OnOpen = std::function<void(std::shared_ptr<OpenMember>)>;
  /// See ServerTable; with the number of the member.
  struct Place {
    /// The name of another member at that server; "": there is none.
    std::function<std::string(rtrs::ServerId id, ServerTable::Stage stage)> enter;
    std::function<void()> leave;
  };
  using Clock = std::chrono::steady_clock;

  /// `config`: with the paths to this member. The functions are called from the link's thread.
  MemberLink(ClientConfig config, rtrs::Log log, OnOpen on_open, Place place, MemberRole role = {});
  /// Call leave() first, unless start() was never called.
  ~MemberLink();
  MemberLink(const MemberLink&) = delete;
  MemberLink& operator=(const MemberLink&) = delete;

  void start();
  /// Ends the present session and makes a new one, `wait` later at the earliest. A session ends
  /// when all others that share it have given it back.
  void renew(std::shared_ptr<OpenMember> before, Clock::duration wait = {});
  /// Makes the new session now, if one is to be made.
  void hurry();
  /// Ends the session, or an attempt to make one, and makes no new one.
  void let_go(std::shared_ptr<OpenMember> before);
  /// One who shares the session with others does not use it any more.
  void give_back(std::shared_ptr<OpenMember> open);
  /// Replaces the server. An attempt to reach the one before ends at once.
  void go_to(const rtrs::PathAddress& path);
  /// Stops connecting and waits for the thread, which may close `last`.
  void leave(std::shared_ptr<OpenMember> last);

  std::shared_ptr<const ClientConfig> config() const;
  /// `host:port`
  std::string server() const;
  /// The reason why it is no member; "" = it is one, or was not tried yet.
  std::string trouble() const;
  /// True if another client writes to the disk, as the server has said last, or if that is being
  /// asked.
  bool is_used() const;
  /// Says each reason once. Attempts to reach the server say nothing while there is one.
  void set_trouble(const std::string& trouble);
  SessionStatus status() const;

 private:
  using Quiet = std::shared_ptr<std::atomic<bool>>;  ///< true: the session's lines are not said

  rtrs::Log log_of_attempt(const ClientConfig& config, Quiet quiet) const;
  void run();
  std::shared_ptr<OpenMember> connect();
  std::string complaint(const OpenMember& member) const;
  std::string twin_at(Session& session, ServerTable::Stage stage);
  void set_used(bool used);
  static bool is_in_vain(void* context);
  bool is_due() const;
  std::vector<std::shared_ptr<OpenMember>> take_unused();

  const rtrs::Log log_;
  const OnOpen on_open_;
  const Place place_;
  const MemberRole role_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const ClientConfig> config_;  ///< guarded by mutex_, as all below
  bool wanted_ = true;
  Clock::time_point not_before_{};  ///< a new session
  bool leaving_ = false;
  std::shared_ptr<const ClientConfig> tried_;       ///< of the newest attempt
  std::shared_ptr<SharedSession> shared_;           ///< likewise
  Quiet quiet_;                                     ///< likewise
  std::vector<std::shared_ptr<OpenMember>> ended_;  ///< to be closed
  std::string trouble_;
  bool used_ = false;           ///< see is_used()
  std::set<std::string> told_;  ///< the troubles since it was a member
  Clock::time_point opened_{};
  rtrs::Duration pause_;
  std::thread thread_;
};

}  // namespace rnbd::mirror
