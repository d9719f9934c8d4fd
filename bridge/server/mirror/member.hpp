// SPDX-License-Identifier: BSD-3-Clause
// The rules that a member of a mirror group keeps, at its server.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// The state of a member that outlives a crash.
struct MemberRecord {
  unsigned number = 0;            ///< of this member; kVote: it is the vote
  unsigned members = 0;           ///< of the group, without the vote
  std::uint64_t promised = 0;     ///< orders of lower terms are refused
  View view;                      ///< the newest view that was recorded here
  View confirmed;                 ///< the newest view that all its members are known to have
  std::uint64_t whole_epoch = 0;  ///< volatile epoch at its newest view; 0 = in none yet
  Maps maps;
  std::uint64_t disk = 0;  ///< its identity, a random number that is made with the record
  std::uint32_t beat = 0;  ///< see Age
  Pedigree pedigree;       ///< of the newest view
  std::uint64_t region_bytes = 1;
  /// Bytes of the group's disk in the newest view, or more while it grows; of a vote 0.
  std::uint64_t size = 0;

  /// The record of a member in no view yet. Nothing is known of its content: any region may differ.
  static MemberRecord first(unsigned number, unsigned members, std::uint64_t size,
                            std::uint64_t region_bytes);
};

/// Decides on a client's orders, and keeps the maps. The caller makes changes of the record durable
/// before answering, and before a write is carried out.
///
/// Errors:  0 or a positive errno: ESTALE for a client that has been superseded.
/// Threads: one; pure.
class Member {
 public:
  /// `epoch`: the volatile epoch of this life, never 0; see docs/protocol.md.
  Member(MemberRecord record, std::uint64_t epoch) : record_{std::move(record)}, epoch_{epoch} {}

  const MemberRecord& record() const { return record_; }
  std::uint64_t session() const { return session_; }
  /// True once it has been in a view, or has recorded one. Until then it may be somebody else's
  /// disk, which a mirror names by mistake: nothing of it outlives the claim.
  bool is_kept() const;
  /// True if record() has changed since the last call.
  bool take_changed();

  /// False: it is a vote, and its record knows none of the disks that the client's mirror has had.
  /// Then it is another mirror's, or the client is a stranger, whose claim would end that mirror.
  bool is_of(const std::vector<std::uint64_t>& disks) const;
  /// Serves only `session` from now on. The caller has ended the previous session, at both ends. A
  /// vote that has recorded nothing promises nothing, as nobody counts on it.
  int claim(std::uint64_t term, std::uint64_t session);
  /// True if claim() would.
  bool refuses(std::uint64_t term, std::uint64_t session) const;
  /// Call it for a claim that was granted. The group's disk has `size` bytes from now on, or is
  /// about to have them, and had `base` of them. Of what lies behind these, and behind the end that
  /// the record knows, nothing is known: it may differ among the members. A smaller size changes
  /// nothing, as its client uses the first part of the disk only. `view`: the one that is to grow;
  /// in another one nothing does. None: any.
  void grow(std::uint64_t base, std::uint64_t size, const ViewId& view);
  /// Such a growth could not be recorded: the disk has `size` bytes, as before.
  void take_back_growth(std::uint64_t size) { resize(size); }
  /// Whether the group may have so many disks: those that would be left out were in no view that
  /// this member knows of.
  bool may_have(unsigned members) const;
  /// Call it for a claim that was granted. The group has so many disks from now on. A new one lacks
  /// all.
  void set_members(unsigned members);
  /// The answer to a claim, granted or refused.
  Claimed claimed() const;
  /// `inherit`: the regions that absent members lack, or empty. `size`: of the disk in that view,
  /// so that a growth which was given up leaves nothing behind; 0: the client knows no growth.
  /// A vote records none. EINVAL: the view counts on another disk with this number, or a larger one
  /// than was claimed.
  int view(std::uint64_t session, const View& view, const View& confirmed,
           const std::vector<RegionMap>& inherit, const Pedigree& pedigree, std::uint64_t size);
  int confirm(std::uint64_t session, const View& view);
  /// Call it before a write to the regions [first, last]. A `copy` brings this member up to date.
  /// Until it is in step, the other members keep the map of the regions that it lacks.
  int write(std::uint64_t session, std::uint32_t first, std::uint32_t last, bool copy);
  /// Call it before a read, a flush, or an answer with maps.
  int serve(std::uint64_t session) const;
  /// Call it before another member reads here for the same client. ESTALE: `disk`, which the client
  /// means, is another one.
  int lend(std::uint64_t disk) const;
  /// Call it before the record is taken away. EPERM: others are in its view, or may be in a newer
  /// one.
  int dissolve(std::uint64_t session, std::uint64_t term) const;
  /// A PULL begins. Its data may be written while it is awaited.
  std::uint64_t begin_pull();
  /// The PULL is answered, whatever comes from its source later.
  void end_pull(std::uint64_t pull) { pulls_.erase(pull); }
  /// False: the PULL has been answered, or its client is not served any more. Its data are dropped.
  bool awaits_pull(std::uint64_t pull) const;
  /// Takes regions out of the activity log that all members have flushed. No write to them is under
  /// way, and the view is one of the term that is promised. In the view `age.view` it counts up to
  /// `age.beat`. All members of that have counted up to `known`, 0: nothing is known.
  int cool(std::uint64_t session, const RegionMap& regions, const Age& age, std::uint32_t known);

 private:
  void resize(std::uint64_t size);
  void log(std::uint32_t region);
  /// It has no disk.
  bool is_vote() const { return record_.size == 0; }
  void know(const Age& age);

  MemberRecord record_;
  std::uint64_t epoch_;
  std::uint64_t session_ = 0;      ///< 0 = no claim since the server started
  std::set<std::uint64_t> pulls_;  ///< under way
  std::uint64_t last_pull_ = 0;
  bool changed_ = true;
};

}  // namespace rnbd::mirror
