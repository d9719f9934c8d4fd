// SPDX-License-Identifier: BSD-3-Clause
// Memory windows of a simulated server that gives its chunks new keys (always-invalidate).
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "rdma/core/queue_pair.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Chunks that a client can write to at the moment, by where they start.
using OpenChunks = std::set<const std::byte*>;

/// The keys of one path's chunks. A change that the core asks for happens when the device gets to
/// it, as with memory windows of type 1: the key is known at once, and good only later. No key
/// comes back.
///
/// Source: docs/protocol.md, RDMA parameters; ibv_bind_mw(3).
class ChunkKeys {
 public:
  struct Chunk {
    rtrs::MutableBytes memory;
    std::uint64_t address = 0;
  };

  ChunkKeys(World& world, OpenChunks& open) : world_{world}, open_{open} {}
  ~ChunkKeys() { end_all(); }
  ChunkKeys(const ChunkKeys&) = delete;
  ChunkKeys& operator=(const ChunkKeys&) = delete;

  // The core's side.
  rtrs::RemoteMemory expose(std::uint32_t window, rtrs::MutableBytes memory);
  /// Returns the key that is to end.
  std::uint32_t revoke(std::uint32_t window);
  /// The core is about to be told that the key has ended. Returns its window.
  std::uint32_t tell_end(std::uint32_t key);
  /// The core relies on it that nothing lands with this key.
  bool over(std::uint32_t key) const;

  // The device's side.
  void bind(std::uint32_t key);
  void unbind(std::uint32_t key);
  /// Null when the key opens nothing.
  const Chunk* find(std::uint32_t key) const;
  /// The queue pairs are gone, and all keys with them.
  void end_all();

 private:
  struct Window {
    Chunk chunk;
    std::uint32_t key = 0;
    bool exposed = false;  ///< as far as the core knows
    bool over = false;
  };

  World& world_;
  OpenChunks& open_;
  std::uint32_t next_ = 0x1000;
  std::map<std::uint32_t, Window> windows_;
  std::map<std::uint32_t, std::uint32_t> issued_;  ///< key -> window, also those of the past
  std::map<std::uint32_t, Chunk> bound_;           ///< by key
};

}  // namespace sim
