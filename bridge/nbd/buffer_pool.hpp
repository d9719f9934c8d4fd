// SPDX-License-Identifier: BSD-3-Clause
// Memory for the data of requests, kept by size instead of going back to the allocator.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "rdma/wire/endian.hpp"

namespace rnbd::nbd {

/// Buffers of 4 KiB to 32 MiB, aligned to pages. Small ones are kept when they come back, large
/// ones only up to a limit in all.
///
/// Threads: one.
class BufferPool {
 public:
  static constexpr std::size_t kSmallest = 4096;  ///< bytes

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Buffer {
    std::unique_ptr<std::byte[], Free> memory;
    std::size_t size = 0;  ///< bytes; a power of two, 0 = none

    std::byte* data() const { return memory.get(); }
  };

  /// A buffer of at least `bytes`, at most 32 MiB; its content is undefined. None when there is no
  /// memory.
  Buffer take(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
    std::vector<Buffer>& list = free_.at(index_of(size));
    if (!list.empty()) {
      Buffer buffer = std::move(list.back());
      list.pop_back();
      kept_ -= size;
      return buffer;
    }
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kSmallest, size));
    if (memory == nullptr) return {};
    return {std::unique_ptr<std::byte[], Free>{memory}, size};
  }

  void give_back(Buffer buffer) {
    if (buffer.size == 0 || kept_ + buffer.size > kMostKept) return;
    kept_ += buffer.size;
    free_[index_of(buffer.size)].push_back(std::move(buffer));
  }

 private:
  static constexpr std::size_t kMostKept = 64 * 1024 * 1024;

  static std::size_t index_of(std::size_t size) {
    return static_cast<std::size_t>(std::countr_zero(size / kSmallest));
  }

  std::array<std::vector<Buffer>, 14> free_;  ///< of 4 KiB << index
  std::size_t kept_ = 0;                      ///< bytes in free_
};

}  // namespace rnbd::nbd
