// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace sim {
namespace {

using Words = std::array<std::uint64_t, kSector / sizeof(std::uint64_t)>;

Words words_of(Stamp stamp) {
  Words words;
  std::uint64_t word = stamp;
  for (auto& w : words) {
    w = word;
    if (stamp != 0) word = word * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019;
  }
  return words;
}

bool all(std::span<const std::byte> memory, std::byte value) {
  return memory.empty() || (memory[0] == value &&
                            std::memcmp(memory.data(), memory.data() + 1, memory.size() - 1) == 0);
}

}  // namespace

void write_pattern(std::byte* sector, Stamp stamp, std::size_t valid) {
  const Words words = words_of(stamp);
  std::memcpy(sector, words.data(), valid);
  std::memset(sector + valid, 0, kSector - valid);
}

Stamp read_pattern(const std::byte* sector, std::size_t valid, bool padded) {
  Stamp stamp = 0;
  std::memcpy(&stamp, sector, sizeof(stamp));
  const Words words = words_of(stamp);
  if (std::memcmp(sector, words.data(), valid) != 0) return kGarbage;
  if (padded && !all({sector + valid, kSector - valid}, std::byte{0})) return kGarbage;
  return stamp;
}

void poison(std::span<std::byte> memory) { std::fill(memory.begin(), memory.end(), kPoison); }

bool is_poisoned(std::span<const std::byte> memory) { return all(memory, kPoison); }

}  // namespace sim
