// SPDX-License-Identifier: BSD-3-Clause
// The memory into which a path's requests come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/core/server/request.hpp"

namespace rtrs {

/// Chunks of one size, one per permit.
///
/// Units:   bytes.
/// Threads: the session's reactor.
class PathChunks {
 public:
  explicit PathChunks(std::uint32_t size) : size_{size} {}

  void set(MutableBytes memory) { memory_ = memory; }
  MutableBytes memory() const { return memory_; }
  std::uint32_t size() const { return size_; }
  std::size_t offset_of(std::uint32_t buffer_id) const { return std::size_t{buffer_id} * size_; }
  MutableBytes at(std::uint32_t buffer_id) const {
    return memory_.subspan(offset_of(buffer_id), size_);
  }

  /// The parts of the memory that hold no executing request's chunk.
  std::vector<MutableBytes> unused(std::span<const ServerRequest> requests) const;
  /// The bytes that the executing requests use, in whole pages.
  static std::uint64_t held(std::span<const ServerRequest> requests);

 private:
  std::uint32_t size_;
  MutableBytes memory_;
};

}  // namespace rtrs
