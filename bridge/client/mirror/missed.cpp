// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/missed.hpp"

#include <algorithm>
#include <bit>

namespace rnbd::mirror {

void Missed::begin(unsigned member, const RegionMap& hot) {
  Of& of = of_[member];
  if (of.parts.empty())
    of = {std::vector<std::uint64_t>(regions_.count()), RegionMap{regions_.count()}};
  of.whole.add(hot);
}

void Missed::resize() {
  for (Of& of : of_) {
    if (of.parts.empty()) continue;
    of.parts.resize(regions_.count());
    of.whole.resize(regions_.count());
  }
}

void Missed::changed(MemberSet absent, const Range& range) {
  for (unsigned i = 0; i < of_.size(); ++i) {
    if (!has(absent, i) || of_[i].parts.empty()) continue;
    for (auto region = regions_.first(range); region <= regions_.last(range); ++region)
      of_[i].parts[region] |= parts_of(region, range);
  }
}

void Missed::add_whole(unsigned member, const RegionMap& regions) {
  if (!of_[member].parts.empty()) of_[member].whole.add(regions);
}

/// A region that a record names for a reason that is not known here is lacked as a whole.
bool Missed::is_whole(unsigned member, std::uint32_t region) const {
  const Of& of = of_[member];
  if (of.parts.empty() || of.whole.contains(region) || of.parts[region] == 0) return true;
  return of.parts[region] == parts_of(region, regions_.range_of(region));
}

Range Missed::lacking(unsigned member, const Range& range) const {
  const std::uint32_t region = regions_.first(range);
  if (is_whole(member, region)) return range;
  const std::uint64_t parts = of_[member].parts[region] & parts_of(region, range);
  if (parts == 0) return {range.begin, range.begin};
  const std::uint64_t begin = regions_.range_of(region).begin;
  const auto first = static_cast<std::uint64_t>(std::countr_zero(parts));
  const auto behind = static_cast<std::uint64_t>(std::bit_width(parts));
  return {std::max(range.begin, begin + first * part_sectors()),
          std::min(range.end, begin + behind * part_sectors())};
}

std::uint64_t Missed::part_sectors() const {
  return (regions_.region_sectors() + kParts - 1) / kParts;
}

/// Those of the region that the range touches.
std::uint64_t Missed::parts_of(std::uint32_t region, const Range& range) const {
  const Range whole = regions_.range_of(region);
  const std::uint64_t begin = std::max(whole.begin, range.begin) - whole.begin;
  const std::uint64_t end = std::min(whole.end, range.end) - whole.begin;
  const std::uint64_t first = begin / part_sectors();
  const std::uint64_t count = (end - 1) / part_sectors() - first + 1;
  const std::uint64_t ones = count == kParts ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  return ones << first;
}

}  // namespace rnbd::mirror
