// SPDX-License-Identifier: BSD-3-Clause
// The data of a request that come in pieces, in any order and repeatedly.
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/library/memory_budget.hpp"
#include "rdma/wire/endian.hpp"

namespace rtrs::library {

using wire::ConstBytes;
using wire::MutableBytes;

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
  /// Errors: EBADMSG (no piece of these data).
  int add(std::uint64_t offset, ConstBytes piece);
  /// The memory belongs to the caller, for large_free() or free(); null when there is none.
  void* take();
  void clear();

 private:
  MemoryBudget& budget_;
  std::byte* memory_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint32_t piece_size_ = 0;
  std::uint64_t missing_ = 0;  ///< pieces
  std::vector<bool> present_;
};

}  // namespace rtrs::library
