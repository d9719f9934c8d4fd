// SPDX-License-Identifier: BSD-3-Clause
// The data of a request that come in pieces, in any order and repeatedly.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "rdma/wire/endian.hpp"

namespace rtrs::library {

/// The memory that data of all requests may take.
///
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

using wire::ConstBytes;
using wire::MutableBytes;

/// A piece may be received where it belongs (expect()). Only the place of a missing piece can be
/// overwritten in this way, and each place is given away once. If two copies arrive at the same
/// time, the second one is copied from elsewhere.
///
/// Threads: one at a time.
class GatheredData {
 public:
  explicit GatheredData(MemoryBudget& budget) : budget_{budget} {}
  ~GatheredData() { clear(); }
  GatheredData(const GatheredData&) = delete;
  GatheredData& operator=(const GatheredData&) = delete;

  bool empty() const { return memory_ == nullptr; }
  bool complete() const { return !empty() && missing_ == 0; }
  MutableBytes bytes() const { return {memory_, static_cast<std::size_t>(length_)}; }

  /// Makes room for `length` bytes in pieces of `piece_size`. Errors: ENOBUFS.
  int begin(std::uint64_t length, std::uint32_t piece_size);
  /// Copies a piece to its place, unless it is there. Errors: EBADMSG (no piece of these data).
  int add(std::uint64_t offset, ConstBytes piece);
  /// The place of a piece that is still missing, for its only arrival. Empty: it has one, or is
  /// there, or does not exist.
  MutableBytes expect(std::uint64_t offset);
  /// The place of such a piece, if it is not `at`: it must be let go before the piece is added.
  MutableBytes place_elsewhere(std::uint64_t offset, const std::byte* at) const;
  /// The memory belongs to the caller, for large_free() or free(); null when there is none.
  void* take();
  void clear();

 private:
  std::size_t length_of(std::uint64_t offset) const;

  MemoryBudget& budget_;
  std::byte* memory_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint32_t piece_size_ = 0;
  std::uint64_t missing_ = 0;  ///< pieces
  std::vector<bool> present_;
  std::vector<bool> expected_;
};

}  // namespace rtrs::library
