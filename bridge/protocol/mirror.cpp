// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/mirror.hpp"

#include <algorithm>
#include <cstring>

namespace rnbd::mirror {

unsigned threshold(MemberSet set, Degraded degraded) {
  const unsigned members = size(set);
  return members <= 2 && degraded == Degraded::allow ? 1 : members / 2 + 1;
}

/// Each byte is as the one before it, and the first one is zero.
bool only_zeroes(std::span<const std::byte> data) {
  if (data.empty()) return true;
  return data[0] == std::byte{} && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
}

void RegionMap::set_word(std::size_t index, std::uint64_t word) {
  const std::uint32_t rest = regions_ - static_cast<std::uint32_t>(index) * 64;
  words_[index] = rest < 64 ? word & ((std::uint64_t{1} << rest) - 1) : word;
}

void RegionMap::add_all() {
  for (std::size_t i = 0; i < words_.size(); ++i) set_word(i, ~std::uint64_t{0});
}

void RegionMap::add(const RegionMap& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

void RegionMap::remove(const RegionMap& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
}

void RegionMap::clear() { std::fill(words_.begin(), words_.end(), 0); }

bool RegionMap::empty() const {
  return std::all_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word == 0; });
}

std::uint32_t RegionMap::count() const {
  std::uint32_t sum = 0;
  for (const std::uint64_t word : words_) sum += static_cast<std::uint32_t>(std::popcount(word));
  return sum;
}

std::uint32_t RegionMap::next(std::uint32_t from) const {
  while (from < regions_) {
    const std::uint64_t rest = words_[from / 64] >> from % 64;
    if (rest != 0) return from + static_cast<std::uint32_t>(std::countr_zero(rest));
    from = (from / 64 + 1) * 64;
  }
  return regions_;
}

}  // namespace rnbd::mirror
