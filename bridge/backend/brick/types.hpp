// SPDX-License-Identifier: BSD-3-Clause
// Words of a brick: blocks, the slots of its memory, the places of its tier.
#pragma once

#include <cstdint>
#include <vector>

namespace rnbd::brick {

inline constexpr unsigned kBlockShift = 21;
inline constexpr std::uint64_t kBlockSize = std::uint64_t{1} << kBlockShift;  ///< bytes

/// A block's number: its address without the offset.
using Block = std::uint64_t;
/// A block's home in the tier, as long as it is allocated; without a tier just a number.
using Place = std::uint32_t;
/// A piece of memory that holds a block.
using Slot = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xFFFF'FFFF;

using Session = std::uint64_t;
using Path = std::uint64_t;
using Ticket = std::uint64_t;

enum Right : std::uint32_t {
  kRead = 1,
  kWrite = 2,
  kOthersRead = 4,
  kOthersWrite = 8,
  kNoWait = 16,
};

/// A change of the allocation that outlives a crash.
struct Record {
  enum class Change : std::uint8_t {
    alloc = 1,
    free = 2,
    stored = 3,  ///< the place holds the block's content
  };
  Change change{};
  Place place = 0;
  Block block = 0;
};

/// An allocated block, as found after a crash.
struct Kept {
  Block block = 0;
  Place place = 0;
  bool stored = false;  ///< else it reads as zeros
};

/// Bytes of one block.
struct Span {
  Block block = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
};

/// A block in the answer to LIST.
struct Listed {
  Block block = 0;
  bool in_memory = false;
  std::uint32_t mapped = 0;  ///< kRead, kWrite: of any map
};

enum class Listing : std::uint8_t { allocated, mapped_by_me, mapped, recalled };

/// A map, for people.
struct MapReport {
  Session session = 0;
  Block block = 0;
  std::uint32_t rights = 0;  ///< Right
  bool recalled = false;
};

/// A mapped block.
struct MapView {
  Block block = 0;
  std::uint64_t address = 0;
  std::uint64_t generation = 0;
  std::uint32_t key = 0;
  std::uint32_t rights = 0;  ///< kRead, kWrite
};

}  // namespace rnbd::brick
