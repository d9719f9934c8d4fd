// SPDX-License-Identifier: BSD-3-Clause
// How much memory large requests and answers may take at a server.
#pragma once

#include <atomic>
#include <cstdint>

namespace rtrs::library {

/// Threads: any.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t limit) : left_{limit} {}

  /// False: there is not so much left.
  bool take(std::uint64_t bytes) {
    std::uint64_t left = left_.load(std::memory_order_relaxed);
    while (bytes <= left) {
      if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void give_back(std::uint64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> left_;  ///< bytes
};

}  // namespace rtrs::library
