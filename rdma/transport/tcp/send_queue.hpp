// SPDX-License-Identifier: BSD-3-Clause
// Frames that wait to be sent: gathered from the callers' memory, many per system call.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rtrs::tcp {

/// A ring of frames; grows to the deepest backlog seen and allocates nothing from then on.
///
/// Threads: its queue pair's.
class SendQueue {
 public:
  /// Appends [header][data][inlined]. `data` is referred to, the rest is copied.
  Ticket push(const FrameHeader& header, ConstBytes data, ConstBytes inlined);
  /// Appends [header][message] with a copy of the message of any size.
  Ticket push_copy(const FrameHeader& header, ConstBytes message);

  /// Sends as much as the stream takes. Returns 0, or the errno of a failure.
  int send(Stream& stream);
  bool empty() const { return count_ == 0; }

  /// The last frame that does not need its memory any more.
  Ticket sent() const { return sent_; }
  /// Copies all data that is still referred to.
  void disown();
  /// Copies data that begins in this memory.
  void disown(ConstBytes memory);
  void clear();

 private:
  struct Frame {
    /// Header and inlined bytes; data is sent between them.
    std::array<std::byte, sizeof(FrameHeader) + QueuePair::kMaxInline> bytes;
    std::uint32_t inlined = 0;  ///< bytes
    ConstBytes data;
    std::unique_ptr<std::byte[]> owned;
    std::size_t size() const { return sizeof(FrameHeader) + data.size() + inlined; }
  };

  Frame& append(const FrameHeader& header);
  Frame& at(std::size_t index) { return ring_[(head_ + index) & (ring_.size() - 1)]; }
  static void disown(Frame& frame);
  void grow();
  void advance(std::size_t bytes);

  std::vector<Frame> ring_;  ///< size is a power of two
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::size_t offset_ = 0;  ///< bytes of the first frame that are sent already
  Ticket posted_ = 0;
  Ticket sent_ = 0;
};

}  // namespace rtrs::tcp
