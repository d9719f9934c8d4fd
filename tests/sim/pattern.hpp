// SPDX-License-Identifier: BSD-3-Clause
// The content of sectors: every write brings a value that no other write has, and every byte of a
// sector tells which value it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sim {

/// The value of one sector: 0 = all zeroes, kGarbage = bytes that are no value.
using Stamp = std::uint64_t;

inline constexpr Stamp kGarbage = ~Stamp{0};
inline constexpr std::size_t kSector = 512;
/// The content of memory that belongs to nobody at the moment.
inline constexpr std::byte kPoison{0xDB};

/// The value that operation `operation` writes to its sector number `index`.
constexpr Stamp make_stamp(std::uint64_t operation, std::uint64_t index) {
  return (operation << 20) | (index + 1);
}
constexpr std::uint64_t operation_of(Stamp stamp) { return stamp >> 20; }
constexpr std::uint64_t index_of(Stamp stamp) { return (stamp & 0xFFFFF) - 1; }

/// Fills a sector; only the first `valid` bytes when the device ends inside it, the rest is zero.
void write_pattern(std::byte* sector, Stamp stamp, std::size_t valid = kSector);

/// Reads a sector of which `valid` bytes count; the others must be zero when `padded`.
Stamp read_pattern(const std::byte* sector, std::size_t valid, bool padded);

void poison(std::span<std::byte> memory);
bool is_poisoned(std::span<const std::byte> memory);

}  // namespace sim
