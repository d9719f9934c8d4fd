// SPDX-License-Identifier: BSD-3-Clause
// The regions into which a mirrored disk is divided.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Finds the regions of a range, and the range of a region. All have the same size; only the last
/// one may be shorter.
///
/// Threads: any; it never changes.
class Regions {
 public:
  Regions(std::uint32_t count, std::uint64_t region_sectors, std::uint64_t sectors)
      : count_{count}, region_sectors_{region_sectors}, sectors_{sectors} {}

  std::uint32_t count() const { return count_; }
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
  std::uint32_t count_;
  std::uint64_t region_sectors_;
  std::uint64_t sectors_;
};

}  // namespace rnbd::mirror
