// SPDX-License-Identifier: BSD-3-Clause
// The client of a mirror group: one disk with a copy at each of several servers, its members.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "bridge/client/mirror/activity.hpp"
#include "bridge/client/mirror/group_host.hpp"
#include "bridge/client/mirror/membership.hpp"
#include "bridge/client/mirror/missed.hpp"
#include "bridge/client/mirror/pooled_map.hpp"
#include "bridge/client/mirror/range_lock.hpp"
#include "bridge/client/mirror/verification.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

enum class OperationKind : std::uint8_t { read, extents, write, zero, flush, equal, copy, verify };

/// True if it shows content: it needs all that a read needs.
constexpr bool shows(OperationKind kind) {
  return kind == OperationKind::read || kind == OperationKind::extents;
}

/// True if it changes nothing, so that it only waits for changes.
constexpr bool only_reads(OperationKind kind) {
  return shows(kind) || kind == OperationKind::verify;
}

struct Operation {
  enum class Step : std::uint8_t { queued, locking, asking, reading, pulling, writing };
  OperationKind kind{};
  Range range{};
  std::uint32_t region = 0;  ///< of equal and copy
  unsigned target = 0;       ///< of copy
  unsigned source = 0;       ///< the member that is read, or whose data are written
  Step step = Step::queued;
  MemberSet sent = 0;
  MemberSet acked = 0;
  MemberSet unreadable = 0;          ///< members that failed to read it
  MemberSet refused = 0;             ///< members that answered the change with `error`
  int error = 0;                     ///< positive errno
  bool turned = false;               ///< of equal: the data of one that refused are written
  bool repairs = false;              ///< of equal: a difference that was found, with `source` only
  bool clears = false;               ///< of copy: all zeroes from the beginning on, unread
  std::uint64_t pass = 0;            ///< of copy: see Membership::Passage
  std::uint64_t source_session = 0;  ///< when a pull was sent
  std::uint64_t first_tag = 0;       ///< of the first order that is sent after it was submitted
};

/// Those of users by the users' numbers, and those that the group began for itself by numbers from
/// kOwn on.
///
/// Threads: one; pure.
class Operations : public PooledMap<Operation> {
 public:
  static constexpr std::uint64_t kOwn = std::uint64_t{1} << 63;

  std::uint64_t next_own() { return next_own_++; }
  bool has_own(OperationKind kind, std::uint32_t region, unsigned target) const {
    return std::any_of(lower_bound(kOwn), end(), [&](const auto& entry) {
      return entry.second.kind == kind && entry.second.region == region &&
             entry.second.target == target;
    });
  }
  /// Copies to this member.
  unsigned copies(unsigned target) const {
    return static_cast<unsigned>(std::count_if(lower_bound(kOwn), end(), [&](const auto& entry) {
      return entry.second.kind == OperationKind::copy && entry.second.target == target;
    }));
  }
  /// Comparisons, and the repairs of what they found.
  unsigned verifies() const {
    return static_cast<unsigned>(std::count_if(lower_bound(kOwn), end(), [](const auto& entry) {
      return entry.second.kind == OperationKind::verify || entry.second.repairs;
    }));
  }
  bool clears(unsigned target) const {
    return std::any_of(lower_bound(kOwn), end(), [&](const auto& entry) {
      return entry.second.clears && entry.second.target == target;
    });
  }
  bool none_under_way() const {
    return std::all_of(begin(), end(), [](const auto& entry) {
      return entry.second.step == Operation::Step::queued;
    });
  }
  /// A copy of the list, for callers that end some of the operations on the way.
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, operation] : *this) numbers.push_back(number);
    return numbers;
  }
  /// Ends those that the group began for itself, and returns their numbers.
  std::vector<std::uint64_t> erase_own() {
    std::vector<std::uint64_t> numbers;
    for (auto own = lower_bound(kOwn); own != end(); own = erase(own))
      numbers.push_back(own->first);
    return numbers;
  }
  /// The member's session is over: its part in them counts no more.
  void forget(unsigned member) {
    for (auto& [number, operation] : *this) {
      operation.sent = without(operation.sent, member);
      operation.acked = without(operation.acked, member);
      operation.refused = without(operation.refused, member);
    }
  }

 private:
  std::uint64_t next_own_ = kOwn;
};

/// Attaches to the members, keeps them equal, and decides when an operation has ended. A group
/// lives as long as its claim on the members. A new one attaches after that. A member in step has
/// all answered writes.
///
/// Threads: one; pure: no clock, no sockets.
class Group {
 public:
  using Kind = OperationKind;
  using Standing = Membership::Standing;
  using Progress = Membership::Progress;

  Group(const GroupOptions& options, GroupHost& host);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Events.
  /// `overwrite`: a copy may replace the content of its disk even if that holds data of others.
  void link_up(unsigned member, bool overwrite);
  void link_down(unsigned member);
  void answer(const Answer& answer);
  /// `operation` is below kOwn and names one operation at a time.
  void submit(Kind kind, std::uint64_t operation, Range range);
  /// The time to wait for silent members is over.
  void hurry();
  /// While the group attaches, goes on with the content of this member only. When other members
  /// come, they are overwritten with it, and newer data of theirs are lost. Disks that have lost
  /// their place stay as they are. False: this member is not there, or has never been in a view.
  bool force(unsigned member);
  /// Goes on without a member, even if Degraded::quorum wants it. While a view is being recorded,
  /// the rules of a loss count. False: it is the last disk in step, or that view needs it beside a
  /// vote.
  bool discard(unsigned member);
  /// Call it from time to time: takes quiet regions out of the activity logs, and asks the vote
  /// whether it still serves this client.
  void cool();
  /// Call it from time to time: continues the copies that make members equal.
  void work();

  /// Compares the copies of all members in step, from the beginning of the disk to its end, with
  /// work(). Where they differ, the others get the data of `source`; kMaxMembers: they stay as they
  /// are. False: fewer than two members or not that one are in step, or an earlier pass is not
  /// over.
  bool verify(unsigned source);
  void end_verify();
  const Verification& verification() const { return verification_; }

  /// Ends the mirror, of which this member becomes a disk of its own: flushes, goes on without one
  /// after the other, and has the member take its record away. The others keep theirs, by which
  /// they wait for that one for ever. Submit nothing before dissolved(). False: it is not in step,
  /// or that is under way already.
  bool dissolve(unsigned member);

  /// Call it from time to time: asks the members in step how large their disks are. The group's
  /// disk grows when all of them have more room, and all others are away and `spared`, as nobody
  /// waits for them.
  void look_at_rooms(MemberSet spared);
  /// True while requests wait for those that are under way, so that the disk can grow.
  bool prepares_growth() const;
  /// The disk keeps its size, and requests that wait go on.
  void put_off_growth();
  /// Bytes of the disk, once the group is live.
  std::uint64_t disk_size() const { return members_.disk_size(); }
  /// Bytes of a member's own disk; 0: not known.
  std::uint64_t room(unsigned member) const { return members_[member].room; }

  static constexpr std::uint64_t kOwn = Operations::kOwn;

  bool live() const { return members_.phase() == Phase::live; }
  bool is_over() const { return members_.phase() == Phase::over; }
  MemberSet in_step() const { return members_.in_step(); }
  /// The members in step that have copies, and not only a vote.
  MemberSet copies() const { return members_.copies(); }
  std::uint64_t term() const { return members_.term(); }
  /// True if all members are in step, and no operation or copy is left.
  bool whole() const;
  /// True if no region is known to be in an activity log.
  bool cold() const { return activity_.cold(); }
  /// True if the group is live, and goes on when these members are lost.
  bool can_spare(MemberSet members) const;
  /// True while requests wait for members that record a view.
  bool records_view() const { return live() && members_.proposes(); }
  /// Sends reads to this member while it is in step; kMaxMembers: to all members in turn.
  void prefer(unsigned member) { preferred_ = member; }

  Progress progress(unsigned member) const { return members_.progress(member); }
  Membership::Record record(unsigned member) const { return members_.record(member); }
  bool displaced(unsigned member) const { return members_.displaced(member); }
  bool is_set_back(unsigned member) const { return members_.is_set_back(member); }
  bool lacks_history() const { return members_.lacks_history(); }
  /// The number of regions that may differ after an unclean end or a refused change.
  std::uint32_t unequal() const { return unequal_.count(); }

 private:
  using Phase = Membership::Phase;
  using Stage = Membership::Stage;
  using Step = Operation::Step;

  // Members.
  void lose(unsigned member, bool drop);
  void note_missed(unsigned member);
  void claimed(unsigned member, const Answer& answer);
  void claimed_anew(unsigned member, const Answer& answer);
  void inspected(unsigned member, int error);
  void take_in(unsigned member);
  void begin_resync(unsigned member);
  void let_vote();
  void restart();
  void try_attach(bool hurry);
  void propose(MemberSet set, const std::vector<RegionMap>& inherit);
  void supersede();

  // Operations.
  bool may_start(const Operation& operation) const;
  void start(std::uint64_t id);
  void run(std::uint64_t id);
  void read(std::uint64_t id);
  void read_from(unsigned member, std::uint64_t id);
  void read_failed(std::uint64_t id, unsigned member);
  void fail(std::uint64_t id);
  void end_failed(std::uint64_t id, int error);
  void refused(std::uint64_t id, unsigned member, int error);
  void outvoted(std::uint64_t id);
  void refuse(std::uint64_t id);
  void repair(const Operation& read);
  void pull(std::uint64_t id);
  void pulled(std::uint64_t id, unsigned member, int error);
  void write(std::uint64_t id);
  void zero_by_writing(std::uint64_t id, unsigned member);
  void settle(std::uint64_t id);
  bool is_claimed_anew(MemberSet members);
  bool has_lease(const Operation& read);
  MemberSet served_since(std::uint64_t tag);
  void settle_all();
  void finish(std::uint64_t id);
  void start_queued();
  void make_equal(const Range& range);
  void begin_own(Kind kind, std::uint32_t region, unsigned target, MemberSet unreadable = 0);
  std::uint64_t begin_own(const Operation& operation);

  // Resync.
  void resync(unsigned member);
  void copy_next(unsigned member);
  bool copy_one(unsigned member);
  bool begin_clearing(unsigned member, std::uint32_t region);
  bool begin_unit(unsigned member, std::uint32_t region);
  Range unit_of(std::uint32_t region, std::uint32_t unit) const;
  std::uint32_t units_of(std::uint32_t region) const;
  void copied(const Operation& copy);
  void end_passage(unsigned member, std::uint32_t region);
  void flushed_joiner(unsigned member);

  // The end of the mirror.
  void dissolve_next();
  void end_dissolve(int error);

  // Verify.
  void verify_next();
  void compared(std::uint64_t id);

  // Growth.
  void resize(std::uint64_t size);
  void told_room(unsigned member, const Answer& answer);
  void begin_growth();
  std::uint64_t size_for(std::uint64_t room) const;
  void grow_next();
  void grown(const SentCommand& sent, const Answer& answer);
  void give_up_growth(unsigned member, int error);
  void end_growth();

  // Zeroes are copied unread.
  void ask(std::uint64_t id);
  void told(std::uint64_t id, unsigned source, const Answer& answer);
  std::uint32_t region_behind(const Range& range, std::uint64_t sector) const;
  std::uint32_t end_of_data(const Range& range, const Answer& answer) const;
  void clear(std::uint64_t id);
  void cleared(std::uint64_t id, unsigned member, int error);
  void give_up(std::uint64_t id);

  // Cooling.
  void ask_vote();
  void flushed_for_cooling(unsigned member, std::uint32_t beat);
  void counted(unsigned member, std::uint32_t beat);
  void cooled();

  /// Bringing back, while attaching, the regions that a member lost with its power, because its
  /// vote is needed.
  struct Mending {
    unsigned member = kMaxMembers;  ///< kMaxMembers: nobody
    unsigned source = 0;
    RegionMap left;
    bool active() const { return member != kMaxMembers; }
  };

  /// An operator has it end.
  struct Dissolving {
    unsigned member = kMaxMembers;  ///< that stays; kMaxMembers: nobody wants it
    std::uint64_t flush = 0;        ///< operation
    bool asked = false;             ///< it was told to take its record away
    bool active() const { return member != kMaxMembers; }
  };

  const GroupOptions options_;
  GroupHost& host_;
  Regions regions_;
  Membership members_;
  Operations operations_;
  std::deque<std::uint64_t> queue_;
  RangeLock locks_;
  RegionMap unequal_;  ///< may differ after an unclean end, or after a refused change
  Activity activity_;
  Missed missed_;
  Mending mending_;
  Verification verification_;
  Dissolving dissolving_;
  bool hurried_ = false;  ///< the time to wait for silent members is over
  std::uint64_t last_pass_ = 0;
  MemberSet echoing_ = 0;  ///< members that were asked whether they still serve this client
  MemberSet asking_ = 0;   ///< members that were asked for the size of their disk
  MemberSet spared_ = 0;   ///< see look_at_rooms()
  unsigned next_read_ = 0;
  unsigned preferred_ = kMaxMembers;
};

}  // namespace rnbd::mirror
