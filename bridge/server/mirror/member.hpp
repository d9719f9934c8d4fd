// SPDX-License-Identifier: BSD-3-Clause
// The rules that a member of a mirror group keeps, at its server.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// A member's knowledge that outlives a crash.
struct MemberRecord {
  unsigned number = 0;            ///< of this member.
  unsigned members = 0;           ///< of the group
  std::uint64_t promised = 0;     ///< orders of lower terms are refused
  View view;                      ///< the newest one that was recorded here.
  View confirmed;                 ///< the newest one of which all its members are known to have it
  std::uint64_t whole_epoch = 0;  ///< volatile epoch at its newest view; 0 = in none yet
  Maps maps;

  /// Of a group that has never been attached; the members are equal then.
  static MemberRecord first(unsigned number, unsigned members, std::uint32_t regions);
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
  /// Whether record() has changed since the last call.
  bool take_changed();

  /// From then on only `session` is served. The caller has ended the session before, at both ends.
  int claim(std::uint64_t term, std::uint64_t session);
  /// The answer to a claim, refused or not.
  Claimed claimed() const;
  /// `inherit`: the regions that absent members lack, or empty.
  int view(std::uint64_t session, const View& view, const View& confirmed,
           const std::vector<RegionMap>& inherit);
  int confirm(std::uint64_t session, const View& view);
  /// Before a write to the regions [first, last]. A `copy` brings this member up to date; others
  /// know the regions that it lacks until it is in step.
  int write(std::uint64_t session, std::uint32_t first, std::uint32_t last, bool copy);
  /// Before a read or a flush, or before the maps are told.
  int serve(std::uint64_t session) const;
  /// All members have flushed these regions, and nothing changes them meanwhile.
  int cool(std::uint64_t session, const RegionMap& regions);

 private:
  void log(std::uint32_t region);

  MemberRecord record_;
  std::uint64_t epoch_;
  std::uint64_t session_ = 0;  ///< 0 = nobody has claimed it in this life
  bool changed_ = true;
};

}  // namespace rnbd::mirror
