// SPDX-License-Identifier: BSD-3-Clause
// A mirror, for all that use it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/disk.hpp"
#include "bridge/client/mirror/call.hpp"
#include "bridge/client/mirror/group_driver.hpp"
#include "bridge/client/mirror/member_links.hpp"
#include "bridge/client/mirror/mirror_door.hpp"
#include "bridge/client/mirror/mirror_lane.hpp"
#include "bridge/client/mirror/mirror_state.hpp"
#include "bridge/client/mirror/mirror_status.hpp"
#include "bridge/client/write_gate.hpp"

namespace rnbd::mirror {

/// Owns the mirror's thread, in which a GroupDriver runs, and leads requests into it. It attaches
/// at the first request, and again after too many members were away.
///
/// Threads: any; leave() when no call is under way.
class Mirror final : public LaneSource, public std::enable_shared_from_this<Mirror> {
 public:
  Mirror(const ClientConfig& config, rtrs::Log log);
  ~Mirror() override;

  /// Waits until the group is attached. No thread exists before the first call.
  ///
  /// Errors: ETIMEDOUT (too few members within the connect timeout), ESTALE (another client has
  ///         it), EINTR; a sentence with the trouble of each member.
  tl::expected<void, Failure> attach(const Interrupt& interrupt);
  /// Begins to attach and does not wait. Orders are accepted after that.
  void begin();
  /// The geometry of the disk, after attach().
  DeviceGeometry geometry() const { return state_.geometry(); }

  /// Performs a read, write, write_zeroes or flush of whole blocks. It does not use the memory
  /// after it has returned. Errors: as Disk.
  int run(const Transfer& transfer, const Interrupt& interrupt);
  /// Requests for whole blocks enter it shared, patches exclusively.
  WriteGate& gate() { return gate_; }

  /// More lanes would not help, because all share one thread.
  unsigned lanes() const override { return 4; }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) override;
  // For a lane: the jobs belong to the mirror until it ends them.
  void take(MirrorLane& lane, const std::vector<rtrs::LaneLoop::Job*>& jobs);
  void give_up(rtrs::LaneLoop::Job& job);

  MirrorStatus status() const;
  // An operator's orders. `server`: a member, as in its status.
  /// While too few members are there, goes on with the content of this one. Newer writes of other
  /// members are lost. Errors: EPERM (without `sure`: a sentence about the consequences), ENOENT,
  /// EALREADY (it is attached), ENXIO (that server is not there).
  tl::expected<void, Failure> force(const std::string& server, bool sure);
  /// Goes on without this member, and does not try to connect to it any more. Errors: ENOENT, EBUSY
  /// (the last one).
  tl::expected<void, Failure> discard(const std::string& server);
  /// Puts a server with an empty disk in the place of a discarded one. Errors: ENOSPC (none was
  /// discarded).
  tl::expected<void, Failure> add(const rtrs::PathAddress& path);
  /// True if another client has taken over the mirror, so that requests get no answer any more.
  bool dead() const { return !state_.dead().empty(); }
  /// Ends the mirror cleanly: the next client need not compare members that are equal now.
  void leave();

 private:
  using Done = GroupDriver::Done;

  Done ask(const std::function<Done()>& question);

  const ClientConfig config_;
  WriteGate gate_;
  MirrorDoor door_;
  CallAnswers answers_;
  MirrorState state_;
  MemberLinks links_;
  GroupDriver driver_;  ///< used by its thread only
  std::mutex mutex_;
  bool running_ = false;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace rnbd::mirror
