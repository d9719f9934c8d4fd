// SPDX-License-Identifier: BSD-3-Clause
// The memory of a brick, and how requests find a block in it without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bridge/backend/brick/types.hpp"

namespace rnbd::brick {

/// Slots of 2 MiB, each aligned to its size.
///
/// Threads: any; open() and close() on the brick's.
class BrickMemory {
 public:
  /// Units: bytes. Requests mark the pieces of this size that they write to.
  static constexpr std::uint32_t kGrain = 64 * 1024;

  /// Null when there is not enough memory. `blocks`: of the device.
  static std::unique_ptr<BrickMemory> map(std::uint32_t slots, std::uint32_t blocks);
  ~BrickMemory();
  BrickMemory(const BrickMemory&) = delete;
  BrickMemory& operator=(const BrickMemory&) = delete;

  std::byte* at(Slot slot) const { return slots_ + slot * kBlockSize; }

  /// Returns the slot of a block and keeps the block there until leave(). kNone: the block has no
  /// slot, or is about to leave it.
  Slot enter(Block block);
  /// True: the caller of close() waits for this.
  bool leave(Block block);
  /// True: the block is not allocated, so that it reads as zeros.
  bool absent(Block block) const {
    return cells_[block].load(std::memory_order_acquire) == kAbsent;
  }

  void open(Block block, Slot slot);
  /// False: a request still uses the block; leave() of the last one returns true.
  bool close(Block block);
  void set_absent(Block block);

  /// Call it after each write, even if the marks are set already: take_dirty() may be clearing
  /// them. Then the store either sees the new bytes, or finds the marks the next time.
  void mark(Slot slot, std::uint64_t offset, std::uint64_t length);
  void mark_grains(Slot slot, std::uint32_t grains) {
    dirty_[slot].fetch_or(grains, std::memory_order_release);
  }
  std::uint32_t take_dirty(Slot slot) {
    return dirty_[slot].exchange(0, std::memory_order_acq_rel);
  }
  bool dirty(Slot slot) const { return dirty_[slot].load(std::memory_order_acquire) != 0; }

 private:
  BrickMemory(std::byte* mapped, std::size_t size, std::uint32_t slots, std::uint32_t blocks);

  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kClosing = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kAbsent = std::uint64_t{1} << 61;
  static constexpr unsigned kSlotShift = 24;  ///< below: requests that are there

  std::byte* mapped_;
  std::size_t size_;
  std::byte* slots_;
  std::vector<std::atomic<std::uint64_t>> cells_;  ///< by block
  std::vector<std::atomic<std::uint32_t>> dirty_;  ///< by slot: a bit for each grain
};

}  // namespace rnbd::brick
