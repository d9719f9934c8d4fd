// SPDX-License-Identifier: BSD-3-Clause
// The members of a mirror group, as its client knows them, and the views on which they agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "bridge/client/mirror/activity.hpp"
#include "bridge/client/mirror/group_host.hpp"
#include "bridge/client/mirror/pooled_map.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

struct SentCommand {
  unsigned member = 0;
  Order order{};
  std::uint64_t operation = 0;
  ViewId view{};
  unsigned about = 0;      ///< member for which the maps were asked
  std::uint32_t beat = 0;  ///< of a flush, beat or cool for the activity logs
};

/// Sends commands, and finds the command to an answer. A forgotten command has no answer any more.
///
/// Threads: one; pure.
class SentCommands {
 public:
  explicit SentCommands(GroupHost& host) : host_{host} {}

  void post(Command& command, const SentCommand& sent) {
    command.tag = next_tag_++;
    sent_.add(command.tag) = sent;
    host_.send(command);
  }
  /// Of the order that is sent next; tags count up.
  std::uint64_t next_tag() const { return next_tag_; }
  std::optional<SentCommand> answered(std::uint64_t tag) { return sent_.take(tag); }
  void forget(unsigned member) {
    for (auto entry = sent_.begin(); entry != sent_.end();)
      entry = entry->second.member == member ? sent_.erase(entry) : std::next(entry);
  }
  void clear() { sent_.clear(); }

  /// True if an order to this member has no answer yet.
  bool awaits(unsigned member) const {
    return std::any_of(sent_.begin(), sent_.end(),
                       [&](const auto& entry) { return entry.second.member == member; });
  }
  bool has_flush() const {
    return std::any_of(sent_.begin(), sent_.end(),
                       [](const auto& entry) { return entry.second.order == Order::flush; });
  }
  /// Members with data on the way to them.
  MemberSet written() const {
    MemberSet members = 0;
    for (const auto& [tag, sent] : sent_)
      if (sent.order == Order::copy || sent.order == Order::write || sent.order == Order::zero)
        members = with(members, sent.member);
    return members;
  }

 private:
  GroupHost& host_;
  PooledMap<SentCommand> sent_;
  std::uint64_t next_tag_ = 1;
};

/// The outcome of all claims, for a client that attaches.
struct Attachment {
  MemberSet candidates = 0;        ///< disks of the newest view that are there
  MemberSet good = 0;              ///< of these, with all that was flushed; and the vote
  bool enough = false;             ///< they may be the next view
  std::uint64_t size = 0;          ///< bytes of the disk
  std::vector<RegionMap> inherit;  ///< per member: the regions that it lacks
  RegionMap unequal;               ///< regions that an unclean end may have left different
  RegionMap active;                ///< regions in activity logs
};

/// Claims members, has them agree on views, and knows in which stage each of them is. The view is
/// the set of members in step. It is in force when all of its members have recorded it.
///
/// A vote is a member that records views and counts in them, and has no copy: another member of the
/// view must be a disk. It is behind the last disk.
///
/// Invariant: a term or session that was used once is never used again.
/// Threads:   one; pure.
/// Source:    docs/mirror.md.
class Membership {
 public:
  enum class Phase : std::uint8_t { attaching, live, over };
  /// The stages of a member without a session (`down`), from its first contact to `in_step`, and of
  /// its resync. From `draining` on it gets all new writes.
  enum class Stage : std::uint8_t {
    down,
    up,
    claiming,
    inspecting,
    claimed,
    in_step,
    draining,
    asking,
    copying,
    settling,  ///< it has everything, and is flushed while requests go on
    emptying,
    flushing,
    inheriting,
    joining,
  };
  /// The way through the units of a region that is copied. If the region changes meanwhile in a way
  /// that its copy lacks, another passage begins, for which the units of this one do not count.
  struct Passage {
    std::uint64_t number = 0;
    std::uint32_t begun = 0;  ///< units, in their order
    std::uint32_t done = 0;
  };
  struct Member {
    Stage stage = Stage::down;
    std::uint64_t session = 0;
    Claimed claimed;
    std::vector<std::uint64_t> older;  ///< running operations that were not sent to it
    RegionMap todo;
    std::uint32_t next_copy = 0;  ///< region: behind the last one that could not be read
    std::map<std::uint32_t, Passage> passages;  ///< by region, of `todo`
    std::uint32_t data_begin = 0;  ///< regions from here to `data_end` have data, it was said
    std::uint32_t data_end = 0;
    bool clears = true;   ///< it can zero without writing
    MemberSet asked = 0;  ///< members that were asked for maps
    std::vector<RegionMap> inherit;
    bool pulls = false;            ///< it can read from other members
    bool writable = false;         ///< a copy may replace its content
    RegionMap logged;              ///< regions that its activity log may have, while it syncs
    RegionMap repaired;            ///< regions that it could not read, and that were rewritten
    std::uint64_t served_tag = 0;  ///< of the newest order that it has carried out
    std::uint64_t room = 0;        ///< bytes of its own disk, as it has said last; 0: unknown
  };
  /// The record of a member that is there.
  struct Record {
    ViewId view{};               ///< its newest one, as far as is known
    std::uint64_t promised = 0;  ///< the highest term that it knows; 0: it has not answered
    // While the group attaches.
    bool told = false;       ///< false: not known, or the group is new
    bool blank = false;      ///< its disk came in the place of a member's
    bool displaced = false;  ///< it was a member, and another disk has its place
    bool set_back = false;   ///< it is older than it was
    bool older = false;      ///< than the record of another member that is there
    MemberSet set = 0;       ///< members in step, as it says
  };
  enum class Standing : std::uint8_t { away, waiting, resync, in_step };
  struct Progress {
    Standing standing = Standing::away;
    std::uint32_t left = 0;  ///< regions to copy
  };

  /// `regions`: of the disk; it must outlive this.
  Membership(const GroupOptions& options, const Regions& regions, GroupHost& host);

  Member& operator[](unsigned member) { return members_[member]; }
  const Member& operator[](unsigned member) const { return members_[member]; }
  Phase phase() const { return phase_; }
  MemberSet in_step() const { return in_step_; }
  /// The members in step that have copies.
  MemberSet copies() const { return copies_; }
  unsigned vote() const { return options_.members; }
  std::uint64_t term() const { return term_; }
  bool proposes() const { return pending_.active; }
  /// The members on which the next view is based.
  MemberSet base() const { return pending_.active ? pending_.view.set : in_step_; }
  /// True if it gets all changes, but is not in step.
  bool syncs(unsigned member) const { return members_[member].stage >= Stage::draining; }
  MemberSet syncing() const;
  Progress progress(unsigned member) const;
  Record record(unsigned member) const;
  /// A member that joins must miss nothing, and a view that is not recorded yet permits nothing. A
  /// disk that grows has no changes under way.
  bool gate_closed() const;

  // Sessions.
  /// `overwrite`: a copy may replace its content even if it holds data of others. A vote is claimed
  /// when a disk is: one that has none takes it from nobody.
  void link_up(unsigned member, bool overwrite);
  /// Claims the vote, if it is there, and a disk is that knows the mirror, or all disks are.
  void claim_vote();
  /// True if a claim, or a question behind it, has no answer yet.
  bool claims() const {
    return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
      return member.stage == Stage::claiming || member.stage == Stage::inspecting;
    });
  }
  /// A member has granted the claim.
  void claimed(unsigned member, const Claimed& answer);
  /// Another client has claimed the member with the term `promised`.
  void outranked(unsigned member, std::uint64_t promised);
  /// A member that promised a higher term comes back only to a client with a still higher one.
  bool must_rise() const { return rise_ && !gate_closed(); }
  void forget(unsigned member);
  /// A disk that is new in the group may hold data of others. True: it is asked whether it does.
  /// While the group attaches, the first member is not, because a new group has its content.
  bool inspect(unsigned member);
  /// A copy could destroy data on its disk, so it waits.
  bool holds_data(unsigned member) const;
  /// Another disk has its place in the group, while it was a member itself. It must not be
  /// overwritten, as it may have what the others lack.
  bool displaced(unsigned member) const {
    return member != vote() && is_stranger(member) && was_in_view(member);
  }
  /// It is the right disk, with a record that has been newer.
  bool is_set_back(unsigned member) const;
  /// The regions that others know it to lack are not all. Its record is older than it was, or it
  /// gets the place of another disk, or may do so: no view knows which disk that was.
  bool lacks_all(unsigned member) const {
    return pedigree_[member].disk == 0 || is_stranger(member) || is_set_back(member);
  }
  /// While the group attaches: an operator has forced a decision that no server here has recorded.
  bool lacks_history() const {
    return phase_ == Phase::attaching && newest_ != ViewId{} &&
           history_of(term_) > history_of(newest_.term);
  }
  /// A live group knows nothing of a decision that an operator has forced elsewhere.
  bool superseded_by(std::uint64_t promised) const {
    return phase_ == Phase::live && history_of(promised) > history_of(term_);
  }

  // Commands.
  SentCommands& sent() { return sent_; }
  void post(unsigned member, Order order, SentCommand about, Command command = {});
  /// A new member learns of the view before it gets data. From then on it is told from a disk that
  /// came in its place, which is empty or holds data of others.
  void introduce(unsigned member);
  /// Asks all in step for the regions that others lack.
  void ask(unsigned member, Stage stage);
  /// The answer of `from`. False: nobody waits for it.
  bool learn(unsigned member, unsigned from, const Maps& maps);

  // Attaching.
  /// Begins anew with a term that is above all that is known. A session that may still carry a copy
  /// ends: it must not arrive behind newer changes.
  void restart();
  /// None: members are missing that may know better, and may yet come, or from which another client
  /// may still read.
  std::optional<Attachment> attachment(bool hurry);
  /// Views are numbered from 1 on.
  void begin_views() { seq_ = 0; }
  /// The term is above all that members know from now on, and those in step are claimed anew with
  /// it. True: all of them have granted that, and a view of this term can be proposed.
  bool rise();
  /// A member in step has granted the new claim. False: its server was started anew meanwhile, and
  /// the member is not what it was in the view in force.
  bool granted(unsigned member, const Claimed& answer);
  /// The term is above all that members know from now on, and a history of its own begins.
  void begin_history();

  // Growth. All members in step record the new size before anybody sees it. If one of them is lost
  // meanwhile, the next view takes it back from the others.
  /// Bytes of the disk, once the group has been live.
  std::uint64_t disk_size() const { return size_; }
  void set_disk_size(std::uint64_t size) { size_ = size; }
  bool grows() const { return growth_.size != 0; }
  /// The gate is closed until end_growth().
  void begin_growth(std::uint64_t size) { growth_ = {.size = size, .asked = false}; }
  /// No operation is under way: asks the members in step to record it, once.
  void ask_to_grow();
  bool has_asked_to_grow() const { return growth_.asked; }
  /// A member has recorded this size, as it was asked to in this view. False: that is over.
  bool has_grown(unsigned member, const ViewId& view, std::uint64_t size);
  /// True: all members in step have recorded it.
  bool all_have_grown() const;
  /// Of the growth.
  std::uint64_t next_size() const { return growth_.size; }
  void end_growth() { growth_ = {}; }

  // Views.
  /// False: too few members would be left.
  bool propose(MemberSet set, const std::vector<RegionMap>& inherit);
  /// The next view is without these members, as an operator wants it, also when one of two is left.
  /// They are in step and not all of them, and no view is proposed.
  void exclude(MemberSet members);
  /// A member has recorded it. True: all have, and it is in force.
  bool recorded(unsigned member, const ViewId& view);

  // Beats: before regions leave the activity logs, each member in step counts in the view in force.
  // Otherwise one that is set back to before their changes could not be told from one that has
  // them.
  std::uint32_t next_beat();
  std::uint32_t beat() const { return beat_.beat; }
  void post_beat(unsigned member);
  /// False: it belongs to an earlier attempt, or to a view that another one is to replace.
  bool counted(unsigned member, std::uint32_t beat);
  /// A member that has got everything counts in its own view before it is in another one. Otherwise
  /// one that is set back to before its copies could not be told from it, as its record says
  /// nothing of them.
  void count_joining(unsigned member);
  /// All have counted, or have recorded a newer view, which tells the same.
  void post_cool(unsigned member, const RegionMap& regions);
  void end();

 private:
  struct Pending {
    View view{};
    std::vector<RegionMap> inherit;
    Pedigree pedigree;
    MemberSet acked = 0;
    bool active = false;
  };

  struct Growth {
    std::uint64_t size = 0;  ///< bytes; 0: none is under way
    bool asked = false;      ///< the members in step were
  };

  std::vector<std::uint64_t> known_disks() const;
  void claim(unsigned member);
  void post_claim(unsigned member);
  std::uint64_t size_of_candidates(MemberSet candidates) const;
  unsigned voters() const { return options_.members + 1; }  ///< there may be no vote
  bool enough(MemberSet kept, const std::vector<MemberSet>& bases) const;
  bool is_stranger(unsigned member) const;
  const View& told_view(unsigned member) const;
  bool is_void(const Claimed& vote) const;
  bool was_in_view(unsigned member) const;
  void learn_pedigree(const ViewId& newest);
  std::optional<Attachment> first_view() const;
  MemberSet must_promise() const;
  void begin_view(MemberSet set, const std::vector<RegionMap>& inherit);
  void send_view();
  void commit();

  const GroupOptions options_;
  const Regions& regions_;
  GroupHost& host_;
  SentCommands sent_;
  std::uint64_t size_;
  Growth growth_;
  Phase phase_ = Phase::attaching;
  std::uint64_t term_ = 1;
  std::uint32_t seq_ = 0;
  MemberSet in_step_ = 0;
  MemberSet copies_ = 0;  ///< the disks of these
  View confirmed_;
  ViewId newest_;      ///< while the group attaches: of those that members have recorded
  Pedigree pedigree_;  ///< of the newest view
  Pending pending_;
  Age beat_;           ///< the number goes on when the view is another one
  bool rise_ = false;  ///< a member knows a higher term
  std::vector<Member> members_;
  std::uint64_t next_session_;
};

}  // namespace rnbd::mirror
