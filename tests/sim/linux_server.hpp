// SPDX-License-Identifier: BSD-3-Clause
// The differences of a Linux server on the wire, between our server's core and the network.
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Describes every chunk on its own, never lets data ride with a reply, and, with `new_keys`, gives
/// every chunk a new key with each reply; the old one ends when the request arrives.
///
/// One per session. Source: docs/protocol.md, replies.
class LinuxServer {
 public:
  struct Chunk {
    rtrs::MutableBytes memory;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    bool open = false;  ///< the client may write with the key
  };

  LinuxServer(World& world, std::uint16_t queue_depth, std::uint32_t chunk_size, bool new_keys)
      : world_{world}, chunks_(queue_depth), chunk_size_{chunk_size}, new_keys_{new_keys} {}

  bool new_keys() const { return new_keys_; }
  void set_chunks(rtrs::MutableBytes memory);
  std::vector<std::byte> info_response() const;
  /// Null when no chunk has ever had this key.
  const Chunk* find(std::uint32_t key) const;
  /// An immediate has landed.
  void arrived(std::uint32_t immediate);
  /// The message that a reply brings in new-key mode.
  std::vector<std::byte> renew(std::uint32_t buffer_id);

 private:
  World& world_;
  std::vector<Chunk> chunks_;
  std::uint32_t chunk_size_;
  bool new_keys_;
};

}  // namespace sim
