// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/large_memory.hpp"

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace rtrs::library {
namespace {

std::uint64_t most_kept() {
  static const std::uint64_t result =
      std::min(kMostKept, static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                              static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 8);
  return result;
}

/// Blocks that nobody uses. All members of a process share one, for memory has no server.
class KeptBlocks {
 public:
  /// The smallest block that has the length and is not much larger. Null: there is none.
  void* take(std::uint64_t length);
  /// False: there is no place for it.
  bool keep(void* memory);
  void clear();
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Block {
    void* memory = nullptr;
    std::uint64_t size = 0;
  };

  std::mutex mutex_;
  std::array<Block, 8> blocks_;
  std::uint64_t kept_ = 0;  ///< bytes
};

void* KeptBlocks::take(std::uint64_t length) {
  const std::lock_guard lock{mutex_};
  Block* best = nullptr;
  for (Block& block : blocks_) {
    const bool fits = block.size >= length && block.size / 2 <= length;
    if (fits && (best == nullptr || block.size < best->size)) best = &block;
  }
  if (best == nullptr) return nullptr;
  kept_ -= best->size;
  return std::exchange(*best, {}).memory;
}

bool KeptBlocks::keep(void* memory) {
  const std::uint64_t size = malloc_usable_size(memory);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory) % kLargePage == 0;
  if (size < kLargePage || !aligned) return false;
  const std::lock_guard lock{mutex_};
  const auto place = std::ranges::find(blocks_, nullptr, &Block::memory);
  if (place == blocks_.end() || size > most_kept() - kept_) return false;
  // Where the system does not know this, the memory is kept as it is.
  madvise(memory, size / kLargePage * kLargePage, MADV_FREE);
  *place = {memory, size};
  kept_ += size;
  return true;
}

void KeptBlocks::clear() {
  const std::lock_guard lock{mutex_};
  for (Block& block : blocks_) std::free(std::exchange(block, {}).memory);
  kept_ = 0;
}

/// Never destroyed: threads of the program may free memory until its very end.
KeptBlocks& kept_blocks() {
  static KeptBlocks& blocks = *new KeptBlocks;
  return blocks;
}

}  // namespace

std::byte* large_allocate(std::uint64_t length) {
  if (length < kLargePage) return static_cast<std::byte*>(std::malloc(length));
  if (void* const kept = kept_blocks().take(length)) return static_cast<std::byte*>(kept);
  const std::uint64_t size = (length + kLargePage - 1) / kLargePage * kLargePage;
  void* memory = std::aligned_alloc(kLargePage, size);
  if (memory == nullptr) {
    kept_blocks().clear();
    memory = std::aligned_alloc(kLargePage, size);
  }
  if (memory != nullptr) madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

void large_free(void* memory) {
  if (memory != nullptr && !kept_blocks().keep(memory)) std::free(memory);
}

namespace {

void before_fork() { kept_blocks().lock(); }
void after_fork() { kept_blocks().unlock(); }

/// Before main(), or while the library is loaded. A child of fork() can use the blocks, too,
/// whatever other threads did at the time.
[[maybe_unused]] const int blocks_are_told = pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

}  // namespace rtrs::library
