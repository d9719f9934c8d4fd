// SPDX-License-Identifier: BSD-3-Clause
// Frames that wait to be sent: gathered from the callers' memory, many per system call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rtrs {
class OneCall;
}

namespace rtrs::tcp {

/// The order of a frame among those that were posted earlier.
enum class FrameOrder : std::uint8_t {
  kept,
  any,  ///< not if it is small: then it need not wait until larger ones are sent
};

/// Two lines of frames. Small ones in any order have their own, which goes first. Else a read of 4
/// KiB would wait for all the large answers that its connection owes to others.
///
/// They are rings, which grow to the deepest backlog seen and allocate nothing from then on.
///
/// Invariant: no frame of the main line overtakes another one. Only so many bytes overtake each of
///            its frames while that is the first.
/// Threads:   its queue pair's.
class SendQueue {
 public:
  /// Appends [header][data][inlined]. `data` is referred to, the rest is copied.
  Ticket push(const FrameHeader& header, ConstBytes data, ConstBytes inlined,
              FrameOrder order = FrameOrder::kept);
  /// Appends [header][message] with a copy of the message of any size.
  Ticket push_copy(const FrameHeader& header, ConstBytes message);

  /// Sends as much as the stream takes. Returns 0, or the errno of a failure.
  int send(Stream& stream);
  bool empty() const { return main_.empty() && small_.empty(); }
  /// Lays the only frame out for one call: gather() where it is, copy() in the memory of `call`.
  /// Returns the number of pieces; 0: there is none, there are more, or it is too long.
  std::size_t gather(OneCall& call);
  std::size_t copy(OneCall& call);
  /// So many more bytes are sent, of the frame that was laid out or of those that go next.
  void advance(std::size_t bytes);

  /// The number of frames that do not need their memory any more.
  Ticket sent() const { return sent_; }
  /// This one does not.
  bool is_sent(Ticket ticket) const {
    return empty() || ticket <= disowned_ || !(main_.has(ticket) || small_.has(ticket));
  }
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
    Ticket ticket = 0;
    ConstBytes data;
    std::unique_ptr<std::byte[]> owned;
    std::size_t size() const { return sizeof(FrameHeader) + data.size() + inlined; }
  };
  /// The size of the ring is a power of two.
  class Line {
   public:
    bool empty() const { return count_ == 0; }
    std::size_t count() const { return count_; }
    Frame& at(std::size_t index) { return ring_[(head_ + index) & mask_]; }
    const Frame& at(std::size_t index) const { return ring_[(head_ + index) & mask_]; }
    Frame& append() {
      if (count_ == ring_.size()) grow();
      return at(count_++);
    }
    void pop() {
      at(0).owned.reset();
      head_ = (head_ + 1) & mask_;
      --count_;
    }
    bool has(Ticket ticket) const;
    void clear();

   private:
    void grow();

    std::vector<Frame> ring_;
    std::size_t mask_ = 0;  ///< for indexes into the ring
    std::size_t head_ = 0;
    std::size_t count_ = 0;
  };
  /// The frames that go next: the first ones of each line, so many of them have gone.
  struct Turn {
    std::size_t main = 0;
    std::size_t small = 0;
    std::size_t overtaken = 0;  ///< bytes that have overtaken the first one of the main line
  };

  Frame& append(Line& line, const FrameHeader& header);
  bool is_small_next(const Turn& turn) const;
  Frame& take(Turn& turn, bool small);
  Line* only_line();
  static void disown(Frame& frame);
  void disown(Line& line, ConstBytes memory);

  Line main_;
  Line small_;
  bool begun_is_small_ = false;  ///< with `offset_`
  std::size_t offset_ = 0;       ///< bytes of the frame that is begun
  std::size_t overtaken_ = 0;    ///< as in Turn
  Ticket posted_ = 0;
  Ticket sent_ = 0;
  Ticket disowned_ = 0;  ///< all up to this one are copied
};

}  // namespace rtrs::tcp
