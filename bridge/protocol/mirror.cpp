// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/mirror.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rnbd::mirror {

unsigned threshold(MemberSet set, Degraded degraded) {
  const unsigned members = size(set);
  return members <= 2 && degraded == Degraded::allow ? 1 : members / 2 + 1;
}

/// A view needs a disk of the one before it. Otherwise the disk that went on with the vote alone,
/// and has lost it, could not know that nobody else has gone on.
bool are_enough(MemberSet members, MemberSet view, unsigned disks, Degraded degraded) {
  const auto kept = static_cast<MemberSet>(members & view);
  return disks_of(kept, disks) != 0 && size(kept) >= threshold(view, degraded);
}

MemberSet renumbered(MemberSet set, unsigned disks) {
  if (disks >= kVote) return set;
  const MemberSet others = without(without(set, disks), kVote);
  const auto counted = static_cast<MemberSet>(has(set, disks) ? bit(kVote) : 0);
  const auto recorded = static_cast<MemberSet>(has(set, kVote) ? bit(disks) : 0);
  return static_cast<MemberSet>(others | counted | recorded);
}

Pedigree renumbered(Pedigree pedigree, unsigned disks) {
  pedigree.resize(kMaxMembers);
  if (disks < kVote) std::swap(pedigree[disks], pedigree[kVote]);
  return pedigree;
}

/// Each byte is as the one before it, and the first one is zero.
bool only_zeroes(std::span<const std::byte> data) {
  if (data.empty()) return true;
  return data[0] == std::byte{} && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
}

RegionMap::RegionMap(std::uint32_t regions) : regions_{regions} {
  std::uint32_t places = regions;
  for (auto& level : levels_) level.resize(places = (places + 63) / 64);
}

void RegionMap::put(std::uint32_t index, std::uint64_t word) {
  std::uint64_t& before = levels_[0][index];
  count_ += static_cast<std::uint32_t>(std::popcount(word));
  count_ -= static_cast<std::uint32_t>(std::popcount(before));
  const bool same = (before == 0) == (word == 0);
  before = word;
  for (std::size_t level = 1; level < kLevels && !same; ++level, index /= 64) {
    std::uint64_t& summary = levels_[level][index / 64];
    summary = levels_[level - 1][index] != 0 ? summary | bit_of(index) : summary & ~bit_of(index);
  }
}

void RegionMap::set_word(std::size_t index, std::uint64_t word) {
  const auto place = static_cast<std::uint32_t>(index);
  const std::uint32_t rest = regions_ - place * 64;
  put(place, rest < 64 ? word & ((std::uint64_t{1} << rest) - 1) : word);
}

void RegionMap::add_all() {
  for (std::size_t i = 0; i < words().size(); ++i) set_word(i, ~std::uint64_t{0});
}

void RegionMap::resize(std::uint32_t regions) {
  RegionMap resized{regions};
  resized.add(*this);
  *this = std::move(resized);
}

void RegionMap::add(const RegionMap& other) {
  const std::size_t both = std::min(words().size(), other.words().size());
  for (std::uint32_t i = 0; i < both; ++i)
    if (other.words()[i] != 0) set_word(i, words()[i] | other.words()[i]);
}

void RegionMap::remove(const RegionMap& other) {
  const std::size_t both = std::min(words().size(), other.words().size());
  for (std::uint32_t i = 0; i < both; ++i)
    if (other.words()[i] != 0) put(i, words()[i] & ~other.words()[i]);
}

void RegionMap::clear() {
  for (auto& level : levels_) std::fill(level.begin(), level.end(), 0);
  count_ = 0;
}

/// It goes up to the first summary that has a bit behind the place, and down again from there. The
/// topmost one has few words.
std::uint32_t RegionMap::next(std::uint32_t from) const {
  std::uint32_t place = from;
  for (std::size_t level = 0; place / 64 < levels_[level].size();) {
    const std::uint64_t rest = levels_[level][place / 64] >> place % 64;
    if (rest == 0) {
      const bool topmost = level + 1 == kLevels;
      place = topmost ? (place / 64 + 1) * 64 : place / 64 + 1;
      if (!topmost) ++level;
      continue;
    }
    place += static_cast<std::uint32_t>(std::countr_zero(rest));
    while (level-- > 0)
      place = place * 64 + static_cast<std::uint32_t>(std::countr_zero(levels_[level][place]));
    return place;
  }
  return regions_;
}

}  // namespace rnbd::mirror
