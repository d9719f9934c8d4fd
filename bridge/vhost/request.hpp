// SPDX-License-Identifier: BSD-3-Clause
// One request of a guest, from its chain to its status.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "bridge/client/disk.hpp"
#include "bridge/nbd/buffer_pool.hpp"
#include "bridge/vhost/split_ring.hpp"
#include "bridge/vhost/virtio_block.hpp"
#include "rdma/client.hpp"

namespace rnbd::vhost {

class Queue;

/// Belongs to its queue, which uses it again and again.
struct Request {
  enum class State : std::uint8_t {
    free,
    on_lane,  ///< `job` is under way; then it is `free`, or `calling`
    calling,  ///< a thread that may wait has it; then it is `free`
  };

  Queue* queue = nullptr;
  State state = State::free;
  Chain chain;
  std::uint16_t place = 0;  ///< the number of chains that were taken before
  BlockRequest block;
  /// The data lie here on their way, not in the guest's memory alone. A guest may change its memory
  /// at any time, and so between the checksum and the sending of a frame. Its server would see a
  /// damaged frame, and close the path of all disks of the session.
  nbd::BufferPool::Buffer buffer;
  bool timed = false;
  std::chrono::steady_clock::time_point began{};  ///< of those that are timed

  Transfer transfer;
  Disk::Begun begun;
  std::optional<TransferOperation> operation;
  rtrs::LaneLoop::Job job;
  int error = 0;            ///< of a call
  Request* next = nullptr;  ///< of those that are free
};

}  // namespace rnbd::vhost
