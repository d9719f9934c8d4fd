// SPDX-License-Identifier: BSD-3-Clause
// A mirror, as its users and operators see it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/client/changes_under_way.hpp"
#include "bridge/client/config.hpp"
#include "bridge/client/disk.hpp"
#include "bridge/client/mirror/group_driver.hpp"
#include "bridge/client/mirror/member_links.hpp"
#include "bridge/client/mirror/mirror_lane.hpp"
#include "bridge/client/mirror/mirror_status.hpp"

namespace rnbd::mirror {

/// Owns the steward's thread, in which a GroupDriver runs. After attach() or begin(), it attaches
/// to the members of the mirror. It does so again after too many members were away.
///
/// Threads: any; leave() when no call is under way.
class Mirror final : public LaneSource, public std::enable_shared_from_this<Mirror> {
 public:
  Mirror(const ClientConfig& config, rtrs::Log log);
  ~Mirror() override;

  /// Waits until the mirror is attached. No thread exists before attach() or begin().
  ///
  /// Errors: ETIMEDOUT (too few members within the connect timeout), ESTALE (another client has
  ///         it), EINTR. The text has the trouble of each member.
  tl::expected<void, Failure> attach(const Interrupt& interrupt);
  /// Begins to attach and does not wait.
  void begin();
  /// The geometry of the disk; known after attach().
  DeviceGeometry geometry() const { return driver_.geometry(); }

  /// Performs a read, write, write_zeroes, discard or flush of whole blocks, and waits for its end.
  /// The memory is not used any more when it returns. Errors: as Disk.
  int run(const Transfer& transfer, const Interrupt& interrupt);
  /// As Disk::extents(), with any borders and any number.
  int extents(std::uint64_t offset, std::uint64_t length, std::vector<wire::Extent>& extents,
              const Interrupt& interrupt);
  /// The changes of all users count as those of one, so that only patches keep others out.
  ChangesUnderWay& changes() { return changes_; }

  unsigned lanes() const override { return lanes_of(config_); }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) override;

  MirrorStatus status();

  // An operator's orders. `server`: a member, as in MirrorStatus. All begin() first.

  /// While too few members are there, goes on with the content of this one. Newer writes on other
  /// members are lost. `split`: also if another client uses those. Returns when the member has
  /// recorded it, so that the mirror is attached.
  ///
  /// Errors:
  /// - ENOENT, EALREADY (it is attached), ENXIO (it is unusable now), EINVAL (its disk is new).
  /// - EPERM (not `sure`; the text has the consequences).
  /// - EBUSY (not `split`, and another client writes to others).
  /// - ETIMEDOUT (not recorded within 5 s, and perhaps later).
  tl::expected<void, Failure> force(const std::string& server, bool sure, bool split);
  /// Goes on without this member, and does not try to connect to it any more.
  ///
  /// Errors: ENOENT, EBUSY (the mirror is not attached, or no other member has all of the content).
  tl::expected<void, Failure> discard(const std::string& server);
  /// Puts a server in the place of a discarded one. Its disk must be empty, unless `overwrite`
  /// allows to replace its content.
  ///
  /// Errors: ENOSPC (none was discarded), EEXIST (that server is a member).
  tl::expected<void, Failure> add(const rtrs::PathAddress& path, bool overwrite);
  /// Begins to compare the copies of all members in step, in the background. `from`: the member
  /// whose data the others get where they differ; "": nothing is changed.
  ///
  /// Errors: ENOENT, EBUSY (not attached, or that one or all but one are not in step), EALREADY.
  tl::expected<void, Failure> verify(const std::string& from);
  /// Errors: ENOENT (none is under way).
  tl::expected<void, Failure> end_verify();
  /// Ends the mirror: flushes, goes on with this member alone, and has it take its record away.
  /// Returns the URI of its disk. Users get EIO from then on, and the mirror cannot be used any
  /// more.
  ///
  /// Errors: ENOENT, EALREADY, EBUSY (not attached, or that one is not in step), EIO (the mirror
  ///         goes on, or nobody knows), ETIMEDOUT (it is under way still after 5 s).
  tl::expected<std::string, Failure> dissolve(const std::string& server);
  /// True if that was done.
  bool dissolved() const { return driver_.dissolved(); }
  /// True if another client has taken the mirror over: all requests fail from now on.
  bool dead() const { return !driver_.dead().empty(); }
  /// Ends the mirror. First tries for 2 s to make the members equal, so that the next client need
  /// not compare them.
  void leave();

 private:
  using Done = GroupDriver::Done;

  Done ask(const std::function<Done()>& question);

  const ClientConfig config_;
  ChangesUnderWay changes_;
  MemberLinks links_;
  GroupDriver driver_;
  std::mutex mutex_;
  bool running_ = false;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace rnbd::mirror
