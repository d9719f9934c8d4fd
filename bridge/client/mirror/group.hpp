// SPDX-License-Identifier: BSD-3-Clause
// The client of a mirror group: one disk with a copy at each of several servers, its members.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "bridge/client/mirror/range_lock.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// A client's orders to a member.
enum class Order : std::uint8_t {
  claim,
  view,
  confirm,
  maps,   ///< return the activity log and the dirty maps
  read,   ///< `range` into the memory of `operation`.
  write,  ///< `range` from that memory, and into the activity log
  copy,   ///< likewise, to a member that is not in step
  pull,   ///< likewise, but the member reads it from `source` by itself
  flush,
  cool,  ///< take `regions` out of the activity log
};

struct Command {
  std::uint64_t tag = 0;  ///< comes back with the answer
  Order order{};
  unsigned member = 0;
  std::uint64_t session = 0;  ///< with the member; it must not perform commands of an older one
  std::uint64_t term = 0;
  View view;
  View confirmed;
  std::vector<RegionMap> inherit;
  RegionMap regions;
  Range range;
  std::uint64_t operation = 0;
  unsigned source = 0;  ///< member
};

struct Answer {
  std::uint64_t tag = 0;
  int error = 0;      ///< positive errno
  Claimed claimed{};  ///< answer to a claim, granted or refused
  Maps maps{};        ///< answer to the order `maps`
};

/// The surroundings of a group. None of these calls back.
class GroupHost {
 public:
  virtual ~GroupHost() = default;
  virtual void send(const Command& command) = 0;
  /// Ends the session with a member. Its orders get no answers any more, and the member refuses
  /// late ones. link_up() announces a new session.
  virtual void drop(unsigned member) = 0;
  virtual void attached() = 0;
  /// The operation has ended. For one that the group began itself, its memory can be freed.
  virtual void done(std::uint64_t operation) = 0;
  /// The same, but no member in step could perform the operation. `error`: positive errno.
  virtual void failed(std::uint64_t operation, int error) = 0;
  /// False: delay copies that no request waits for until work().
  virtual bool may_copy() = 0;
  /// The group is superseded or too few members are left: no operation ends any more.
  virtual void over() = 0;
};

struct GroupOptions {
  unsigned members = 2;
  std::uint32_t regions = 1;
  std::uint64_t region_sectors = 2048;  ///< of each region; the last one may be shorter
  std::uint64_t sectors = 0;            ///< of the disk
  Degraded degraded = Degraded::allow;
  std::uint64_t first_session = 1;  ///< sessions count up from here; unique among all clients
};

/// Attaches to the members, keeps them equal, and decides when an operation has ended. A group
/// lives as long as its claim on the members. A new one attaches after that. A member in step has
/// all answered writes.
///
/// Threads: one; pure: no clock, no sockets.
class Group {
 public:
  enum class Kind : std::uint8_t { read, write, flush, equal, copy };

  Group(const GroupOptions& options, GroupHost& host);

  // Events.
  void link_up(unsigned member);
  void link_down(unsigned member);
  void answer(const Answer& answer);
  /// `operation` is below kOwn and names one operation at a time.
  void submit(Kind kind, std::uint64_t operation, Range range);
  /// The time to wait for silent members is over.
  void hurry();
  /// While the group attaches, goes on with the content of this member only. When other members
  /// come, they are overwritten with it, and newer data of theirs are lost. False: this member is
  /// not there.
  bool force(unsigned member);
  /// Goes on without a member that is not the last one in step.
  void discard(unsigned member);
  /// Call it from time to time: takes quiet regions out of the activity logs.
  void cool();
  /// Call it from time to time: continues the copies that make members equal.
  void work();

  static constexpr std::uint64_t kOwn = std::uint64_t{1} << 63;

  bool live() const { return phase_ == Phase::live; }
  bool is_over() const { return phase_ == Phase::over; }
  MemberSet in_step() const { return in_step_; }
  std::uint64_t term() const { return term_; }
  /// True if all members are in step, and no operation or copy is left.
  bool whole() const;
  /// True if no region is known to be in an activity log.
  bool cold() const { return hot_.empty() && cooling_step_ == Cooling::none; }
  /// Sends reads to this member while it is in step; kMaxMembers: to all members in turn.
  void prefer(unsigned member) { preferred_ = member; }

  enum class Standing : std::uint8_t { away, waiting, resync, in_step };
  struct Progress {
    Standing standing = Standing::away;
    std::uint32_t left = 0;  ///< regions to copy
  };
  Progress progress(unsigned member) const;
  /// The number of regions that may differ after an unclean end.
  std::uint32_t unequal() const { return unequal_.count(); }

 private:
  enum class Phase : std::uint8_t { attaching, live, over };
  /// The stages of a member without a session (`down`), from its first contact to `in_step`, and of
  /// its resync. From `draining` on it gets all new writes.
  enum class Stage : std::uint8_t {
    down,
    up,
    claiming,
    claimed,
    in_step,
    draining,
    asking,
    copying,
    emptying,
    flushing,
    inheriting,
    joining,
  };
  struct Peer {
    Stage stage = Stage::down;
    std::uint64_t session = 0;
    Claimed claimed;
    std::vector<std::uint64_t> older;  ///< running operations that were not sent to it
    RegionMap todo;
    MemberSet asked = 0;  ///< members that were asked for maps
    std::vector<RegionMap> inherit;
    bool pulls = false;       ///< it can read from other members
    bool introduced = false;  ///< it knows of a view
    RegionMap repaired;       ///< regions that it could not read, and that were rewritten
  };
  enum class Step : std::uint8_t { queued, locking, reading, pulling, have_data, writing };
  struct Operation {
    Kind kind{};
    Range range{};
    std::uint32_t region = 0;  ///< of equal and copy
    unsigned target = 0;       ///< of copy
    unsigned source = 0;       ///< the member that is read
    Step step = Step::queued;
    MemberSet sent = 0;
    MemberSet acked = 0;
    MemberSet unreadable = 0;          ///< members that failed to read it
    std::uint64_t source_session = 0;  ///< when a pull was sent
  };
  struct Sent {
    unsigned member = 0;
    Order order{};
    std::uint64_t operation = 0;
    ViewId view{};
    unsigned about = 0;  ///< member for which the maps were asked
  };
  struct Pending {
    View view{};
    MemberSet acked = 0;
    bool active = false;
  };
  enum class Cooling : std::uint8_t { none, flushing, clearing };
  using Operations = std::map<std::uint64_t, Operation>;

  // Members.
  Command& command(Command& command, unsigned member, Order order);
  void post(Command& command, const Sent& sent);
  void claim(unsigned member);
  void lose(unsigned member, bool drop);
  void forget(unsigned member);
  void claimed(unsigned member, const Answer& answer);
  bool syncs(unsigned member) const;
  MemberSet syncing() const;

  // Attaching.
  void restart();
  MemberSet empty_disks(MemberSet present) const;
  void try_attach(bool hurry);
  bool enough(MemberSet kept, const std::vector<MemberSet>& bases) const;
  bool mend(unsigned member, unsigned source, const RegionMap& regions);

  // Views.
  void propose(MemberSet set, const std::vector<RegionMap>& inherit);
  void commit();
  void end();

  // Operations.
  bool gate_closed() const;
  bool may_start(const Operation& operation) const;
  void start(std::uint64_t id);
  void run(std::uint64_t id);
  void read(std::uint64_t id);
  void read_failed(std::uint64_t id, unsigned member);
  void fail(std::uint64_t id);
  void repair(const Operation& read);
  void pull(std::uint64_t id);
  void pulled(std::uint64_t id, unsigned member, int error);
  void write(std::uint64_t id);
  void settle(std::uint64_t id);
  void settle_all();
  void finish(std::uint64_t id);
  void start_queued();
  bool is_unequal(const Range& range, std::uint32_t& region) const;
  void make_equal(const Range& range);
  std::uint32_t first_region(const Range& range) const;
  std::uint32_t last_region(const Range& range) const;
  Range range_of(std::uint32_t region) const;
  void touch(const Range& range, RegionMap& map) const;
  void begin_own(Kind kind, std::uint32_t region, unsigned target, MemberSet unreadable = 0);
  bool has_own(Kind kind, std::uint32_t region, unsigned target) const;
  bool nothing_under_way() const;

  // Resync.
  void resync(unsigned member);
  void introduce(unsigned member);
  void ask(unsigned member, Stage stage);
  void maps(unsigned about, unsigned from, const Maps& maps);
  void copy_next(unsigned member);
  void join(unsigned member);

  // Cooling.
  void flushed_for_cooling(unsigned member);
  void cooled(unsigned member);

  GroupOptions options_;
  GroupHost& host_;
  Phase phase_ = Phase::attaching;
  std::uint64_t term_ = 1;
  std::uint32_t seq_ = 0;
  MemberSet in_step_ = 0;
  View confirmed_;
  Pending pending_;
  bool rise_ = false;  ///< a member knows a higher term
  std::vector<Peer> peers_;
  std::map<std::uint64_t, Sent> sent_;
  std::uint64_t next_tag_ = 1;
  std::uint64_t next_session_;
  std::uint64_t next_own_ = kOwn;
  Operations operations_;
  std::deque<std::uint64_t> queue_;
  RangeLock locks_;
  RegionMap unequal_;  ///< regions that an unclean end may have left different
  RegionMap hot_;      ///< regions that may be in activity logs
  RegionMap touched_;  ///< changed since cooling began
  RegionMap cooling_;
  Cooling cooling_step_ = Cooling::none;
  MemberSet cooling_waits_ = 0;
  unsigned mending_ = kMaxMembers;
  unsigned mending_source_ = 0;
  RegionMap mending_left_;
  unsigned next_read_ = 0;
  unsigned preferred_ = kMaxMembers;
};

}  // namespace rnbd::mirror
