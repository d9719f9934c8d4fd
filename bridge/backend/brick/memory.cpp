// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick/memory.hpp"

#include <sys/mman.h>

namespace rnbd::brick {

std::unique_ptr<BrickMemory> BrickMemory::map(std::uint32_t slots, std::uint32_t blocks) {
  const std::size_t size = (std::size_t{slots} + 1) * kBlockSize;  // one more, to align the rest
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<BrickMemory>{
      new BrickMemory{static_cast<std::byte*>(memory), size, slots, blocks}};
}

BrickMemory::BrickMemory(std::byte* mapped, std::size_t size, std::uint32_t slots,
                         std::uint32_t blocks)
    : mapped_{mapped}, size_{size}, slots_{mapped}, cells_(blocks), dirty_(slots) {
  const auto beyond = reinterpret_cast<std::uintptr_t>(mapped) % kBlockSize;
  if (beyond != 0) slots_ += kBlockSize - beyond;
  // One page of the translation tables for each block, here and in the network card.
  madvise(slots_, slots * kBlockSize, MADV_HUGEPAGE);
}

BrickMemory::~BrickMemory() { munmap(mapped_, size_); }

Slot BrickMemory::enter(Block block) {
  std::atomic<std::uint64_t>& cell = cells_[block];
  std::uint64_t word = cell.load(std::memory_order_acquire);
  while ((word & (kOpen | kClosing)) == kOpen) {
    if (cell.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel))
      return static_cast<Slot>((word & ~kOpen) >> kSlotShift);
  }
  return kNone;
}

bool BrickMemory::leave(Block block) {
  const std::uint64_t word = cells_[block].fetch_sub(1, std::memory_order_acq_rel) - 1;
  const std::uint64_t there = word & ((std::uint64_t{1} << kSlotShift) - 1);
  return there == 0 && (word & kClosing) != 0;
}

void BrickMemory::open(Block block, Slot slot) {
  if (block >= cells_.size()) return;
  cells_[block].store(kOpen | std::uint64_t{slot} << kSlotShift, std::memory_order_release);
}

bool BrickMemory::close(Block block) {
  if (block >= cells_.size()) return true;
  std::atomic<std::uint64_t>& cell = cells_[block];
  std::uint64_t word = cell.load(std::memory_order_acquire);
  while (true) {
    const std::uint64_t there = word & ((std::uint64_t{1} << kSlotShift) - 1);
    const bool idle = (word & kOpen) == 0 || there == 0;
    if (cell.compare_exchange_weak(word, idle ? 0 : word | kClosing, std::memory_order_acq_rel))
      return idle;
  }
}

void BrickMemory::set_absent(Block block) {
  if (block < cells_.size()) cells_[block].store(kAbsent, std::memory_order_release);
}

void BrickMemory::mark(Slot slot, std::uint64_t offset, std::uint64_t length) {
  const auto first = static_cast<unsigned>(offset / kGrain);
  const auto last = static_cast<unsigned>((offset + length - 1) / kGrain);
  const std::uint32_t up_to_last = last == 31 ? ~0U : (1U << (last + 1)) - 1;
  mark_grains(slot, up_to_last & ~((1U << first) - 1));
}

}  // namespace rnbd::brick
