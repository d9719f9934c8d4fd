// SPDX-License-Identifier: BSD-3-Clause
// The activity logs of a mirror's members, as its client knows them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Of a disk; the last one may be a part of one.
constexpr std::uint64_t sectors_of(std::uint64_t bytes) { return (bytes + 511) / 512; }

/// Finds the regions of a range, and the range of a region. All have the same size; only the last
/// one may be shorter. There are more of them once the disk has grown.
///
/// Threads: one; pure.
class Regions {
 public:
  Regions(std::uint64_t region_sectors, std::uint64_t sectors) : region_sectors_{region_sectors} {
    resize(sectors);
  }

  void resize(std::uint64_t sectors) {
    sectors_ = sectors;
    count_ = count_of(sectors);
  }
  std::uint32_t count() const { return count_; }
  /// Of a disk of so many sectors.
  std::uint32_t count_of(std::uint64_t sectors) const {
    return static_cast<std::uint32_t>((sectors + region_sectors_ - 1) / region_sectors_);
  }
  std::uint64_t region_sectors() const { return region_sectors_; }
  std::uint64_t sectors() const { return sectors_; }
  std::uint32_t first(const Range& range) const {
    return static_cast<std::uint32_t>(range.begin / region_sectors_);
  }
  /// That of an empty range is its first one.
  std::uint32_t last(const Range& range) const {
    if (range.end <= range.begin) return first(range);
    return static_cast<std::uint32_t>((range.end - 1) / region_sectors_);
  }
  Range range_of(std::uint32_t region) const {
    const std::uint64_t begin = region * region_sectors_;
    return {begin, std::min(begin + region_sectors_, sectors_)};
  }

  void add(const Range& range, RegionMap& map) const {
    for (auto region = first(range); region <= last(range); ++region) map.add(region);
  }
  bool meets(const Range& range, const RegionMap& map) const {
    const std::uint32_t region = map.next(first(range));
    return region <= last(range) && region < map.regions();
  }

 private:
  std::uint64_t region_sectors_;
  std::uint64_t sectors_ = 0;
  std::uint32_t count_ = 0;
};

/// Says which regions may be in the activity logs, and takes regions at rest out of them. First all
/// members flush. Regions that no change has touched since then leave the logs.
///
/// Invariant: while a region leaves, no change to it begins, or the order to take it out could
///            overtake the change.
/// Threads:   one; pure.
class Activity {
 public:
  /// `regions` must outlive it.
  explicit Activity(const Regions& regions)
      : regions_{regions},
        hot_{regions.count()},
        touched_{regions.count()},
        leaving_{regions.count()} {}

  /// There is another number of regions.
  void resize() {
    for (RegionMap* map : {&hot_, &touched_, &leaving_}) map->resize(regions_.count());
  }
  /// A member reports the regions in its log.
  void add(const RegionMap& active) { hot_.add(active); }
  /// A change is sent.
  void log(const Range& range) { regions_.add(range, hot_); }
  /// A change or flush may be sent from now on.
  void touch(const Range& range) { regions_.add(range, touched_); }

  /// Regions that may be in the logs of members in step.
  const RegionMap& hot() const { return hot_; }
  /// True if no region is known to be in a log.
  bool cold() const { return hot_.empty() && idle(); }
  bool idle() const { return step_ == Step::idle; }
  /// True if no change to the range may begin.
  bool is_leaving(const Range& range) const {
    return step_ == Step::clearing && regions_.meets(range, leaving_);
  }

  /// `flushing` are asked to flush. Those under way must be touched again. False: nothing is to be
  /// done.
  bool begin(const RegionMap& kept, MemberSet flushing);
  /// True: all have flushed, and clear() comes next.
  bool flushed(unsigned member);
  /// `members` are asked to take leaving() out of their logs.
  void clear(MemberSet members);
  const RegionMap& leaving() const { return leaving_; }
  /// True: all have done that, and changes may begin.
  bool cleared(unsigned member);
  /// The session of a member in step is over. A flush under way ends, because later ones of the
  /// others count in another view. True: as cleared().
  bool lost(unsigned member);

 private:
  enum class Step : std::uint8_t { idle, flushing, clearing };

  const Regions& regions_;
  RegionMap hot_;      ///< may be in activity logs
  RegionMap touched_;  ///< changed since the flush was asked for
  RegionMap leaving_;
  Step step_ = Step::idle;
  MemberSet waits_for_ = 0;
};

}  // namespace rnbd::mirror
