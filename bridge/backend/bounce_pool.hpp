// SPDX-License-Identifier: BSD-3-Clause
// Aligned memory for requests with direct I/O and unaligned memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace rnbd {

/// A fixed number of buffers. The kernel allocates their pages at the first use, so they cost
/// nothing if all requests are aligned.
///
/// Threads: one.
class BouncePool {
 public:
  static constexpr std::size_t kBufferSize = 256 * 1024;
  static constexpr std::size_t kBuffers = 16;

  /// `alignment` in bytes, a power of two; 0 = no buffers.
  explicit BouncePool(std::size_t alignment) {
    if (alignment == 0) return;
    memory_ = static_cast<std::byte*>(
        std::aligned_alloc(std::max<std::size_t>(alignment, 4096), kBuffers * kBufferSize));
    free_.reserve(kBuffers);
    for (std::size_t i = 0; memory_ != nullptr && i < kBuffers; ++i) {
      free_.push_back(memory_ + i * kBufferSize);
    }
  }
  ~BouncePool() { std::free(memory_); }
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  /// Null when all are in use.
  std::byte* take() {
    if (free_.empty()) return nullptr;
    std::byte* const buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(std::byte* buffer) { free_.push_back(buffer); }

 private:
  std::byte* memory_ = nullptr;
  std::vector<std::byte*> free_;
};

}  // namespace rnbd
