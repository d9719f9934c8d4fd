// SPDX-License-Identifier: BSD-3-Clause
// The changes that a member of a mirror has missed, by parts of regions.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/client/mirror/activity.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Narrows down the regions that members lack by the servers' records. A region has 64 parts, as
/// its record has one bit. It counts for members that were in step with this group and lost: since
/// then all changes were this client's. Regions that may have been in the member's activity log are
/// lacked as a whole, because changes of before may not have reached its storage.
///
/// Invariant: a part that is not lacked is the same at the member as at those in step. Where the
///            records know another reason to lack it, its region is added as a whole.
/// Threads:   one; pure.
class Missed {
 public:
  /// `regions` must outlive it.
  Missed(const Regions& regions, unsigned members) : regions_{regions}, of_(members) {}

  /// A member in step is lost. `hot`: may be in its log.
  void begin(unsigned member, const RegionMap& hot);
  /// A change goes to all but these.
  void changed(MemberSet absent, const Range& range);
  /// There is another number of regions.
  void resize();
  /// The member may lack all of these, for another reason than a change.
  void add_whole(unsigned member, const RegionMap& regions);
  /// It has everything, or nothing is known of it any more.
  void forget(unsigned member) { of_[member] = {}; }

  /// True if it lacks the whole region, as far as is known.
  bool is_whole(unsigned member, std::uint32_t region) const;
  /// The smallest range that has all that it lacks of this one, within one region; perhaps empty.
  Range lacking(unsigned member, const Range& range) const;

 private:
  static constexpr unsigned kParts = 64;  ///< of a region
  struct Of {
    std::vector<std::uint64_t> parts;  ///< one bit for each part, by region; empty: not known
    RegionMap whole;
  };
  std::uint64_t part_sectors() const;
  std::uint64_t parts_of(std::uint32_t region, const Range& range) const;

  const Regions& regions_;
  std::vector<Of> of_;
};

}  // namespace rnbd::mirror
