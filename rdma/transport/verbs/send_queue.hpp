// SPDX-License-Identifier: BSD-3-Clause
// The sends of a verbs queue pair: gathered until the doorbell, posted as one chain.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {

/// One work request that waits to be posted.
struct Post {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  RemoteMemory to;
  const std::byte* data = nullptr;  ///< registered memory, read by the device until it is sent
  std::uint32_t length = 0;
  std::uint32_t key = 0;          ///< local key of `data`
  std::uint32_t immediate = 0;    ///< or the key that the peer shall invalidate
  std::uint32_t copied = 0;       ///< bytes of `copy`; never together with `data`
  bool signalled = false;         ///< its completion is wanted
  std::unique_ptr<Region> owned;  ///< a message too long for `copy`; `data` points into it
  std::array<std::byte, 320> copy;

  void copy_in(ConstBytes bytes);
};

/// Keeps posts beyond the device's queue, so that posting never fails. One in `interval` sends asks
/// for a completion; that of a later send tells the end of the earlier ones, too.
///
/// Threads: as its queue pair.
/// Source:  ibv_post_send(3).
class SendQueue {
 public:
  /// The limits granted by the device.
  struct Limits {
    unsigned depth = 0;    ///< work requests in its queue
    unsigned inlined = 0;  ///< bytes that it takes out of a work request itself
  };

  /// `copies` holds data too large to be inlined, `depth` times sizeof(Post::copy); null when all
  /// can.
  SendQueue(ibv_qp* queue_pair, Limits limits, std::unique_ptr<Region> copies);

  /// The next post, to be filled where it stands before another is added; last_pushed() is its
  /// ticket.
  Post& add(ibv_wr_opcode opcode, RemoteMemory to, std::uint32_t immediate);
  bool empty() const { return head_ == tail_; }
  Ticket waiting() const { return tail_ - head_; }
  Ticket last_pushed() const { return tail_; }
  Ticket last_posted() const { return head_; }
  /// The device is certainly done with everything that it was given.
  bool idle() const { return completed_ == head_; }
  /// The last one that it is certainly done with: the peer's device has it.
  Ticket completed() const { return completed_; }

  /// Posts as many as the device takes. Errors: the reason, in words; "" = fine.
  std::string flush();
  /// The device is done with everything up to `ticket`.
  void complete(Ticket ticket);

  /// Nothing is posted any more and the device has let go: gives all memory back.
  void close();

  static constexpr unsigned kSignalInterval = 64;

 private:
  void fill(ibv_send_wr& request, ibv_sge& element, Post& post, Ticket ticket);
  Post& at(Ticket ticket) { return ring_[ticket & (ring_.size() - 1)]; }
  void grow();

  ibv_qp* queue_pair_;
  Limits limits_;
  unsigned interval_;
  std::unique_ptr<Region> copies_;
  std::vector<Post> ring_;  ///< tickets (head_, tail_]; a power of two
  Ticket head_ = 0;         ///< the last one given to the device
  Ticket tail_ = 0;         ///< the last one pushed
  Ticket completed_ = 0;
  struct Kept {
    Ticket ticket;
    std::unique_ptr<Region> region;
  };
  std::vector<Kept> kept_;  ///< long messages under way
};

}  // namespace rtrs::verbs
