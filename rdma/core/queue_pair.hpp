// SPDX-License-Identifier: BSD-3-Clause
// The narrow waist: the transport as a session needs it. Verbs has it in hardware, TCP emulates it,
// the simulator queues events; one conformance suite runs against all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs {

using wire::ConstBytes;
using wire::MutableBytes;

/// Memory of the peer: an opaque address and the key that opens it.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

/// The most that a queue pair will be asked to hold at once.
struct QueueSizes {
  unsigned sends = 0;     ///< posts under way
  unsigned receives = 0;  ///< posted receives.
  unsigned keys = 0;  ///< exposures and revocations under way, where windows have keys of their own
  bool regions = false;  ///< the peer uses memory of ours by itself (rdma/core/regions.hpp)
  bool reads = false;    ///< this end uses the peer's
};

/// Position in the order of posts of one queue pair; the first post has 1.
using Ticket = std::uint64_t;

/// Bytes that both ends of a connection see alike, and that no other connection has.
using Binding = std::array<std::byte, 48>;

/// The reason why a path must close, in words for the log; nullptr = all is well.
using Complaint = const char*;

/// Handles the arrivals on a queue pair. Called from QueuePair::progress() only.
///
/// Errors:  a complaint means that the peer broke the protocol: the driver closes the path and logs
/// it.
/// Threads: the driver of the queue pair.
class QueuePairHandler {
 public:
  /// Bytes at the start of each piece of exposed memory to which a write always has room.
  static constexpr std::uint32_t kAlwaysRoom = 8192;
  /// A transport that can leave a write where it is calls room_for() before one that arrives there,
  /// if this is true.
  bool asks_for_room(std::uint64_t address, std::uint32_t length) const {
    return piece_ != 0 && address % piece_ + length > kAlwaysRoom;
  }
  /// A write of the peer has landed in exposed memory; `bytes` were written by this operation.
  [[nodiscard]] virtual Complaint on_write_with_immediate(std::uint32_t immediate,
                                                          std::uint32_t bytes) = 0;
  /// The place for a write that is about to arrive.
  struct Room {
    bool there = true;          ///< false: not now; nothing more is received until it is
    Complaint wrong = nullptr;  ///< null: the write is in order
  };
  /// A write to exposed memory is about to arrive.
  virtual Room room_for(std::uint64_t /*address*/, std::uint32_t /*length*/) { return {}; }
  /// A large write with an immediate begins to arrive, at `address` of a window, on a transport
  /// that can put its first bytes elsewhere. Returns where and how many, fewer than `length`;
  /// empty: all go where they were sent. The memory must stay until on_write_with_immediate() for
  /// this write, or QueuePair::end_detour().
  virtual MutableBytes detour(std::uint64_t /*address*/, std::uint32_t /*length*/,
                              std::uint32_t /*immediate*/) {
    return {};
  }
  /// A message has landed in a posted receive.
  [[nodiscard]] virtual Complaint on_message(ConstBytes message,
                                             std::optional<std::uint32_t> immediate) = 0;
  /// A read() or a write_confirmed() has been carried out, and so has all that was posted before
  /// it.
  [[nodiscard]] virtual Complaint on_done(Ticket /*ticket*/) {
    return "an operation ended that nobody began";
  }
  /// revoke() has taken effect: nothing lands in the window any more.
  [[nodiscard]] virtual Complaint on_revoked(std::uint32_t /*window*/) {
    return "a window ended that nobody revoked";
  }

 protected:
  ~QueuePairHandler() = default;
  /// Exposed memory consists of pieces of so many bytes. 0: there is always room.
  void ask_for_room(std::uint32_t piece) { piece_ = piece; }

 private:
  std::uint32_t piece_ = 0;
};

/// One reliable connection: ordered, with receives posted by us and memory of ours that the peer
/// may write.
///
/// Posting never blocks and never fails at once. A post that cannot be sent now is queued, and the
/// driver finds a queue pair that broke. The queue is sent by flush(); a driver that finds it
/// non-empty sends it too.
///
/// Threads: one at a time (its driver says which).
/// Source:  docs/protocol.md, queue pairs; ibv_post_send(3).
class QueuePair {
 public:
  virtual ~QueuePair() = default;

  /// Writes `data`, then `header`, to the peer's memory as one operation that ends with
  /// `immediate`. `header` is copied (at most kMaxInline bytes); `data` must stay until sent()
  /// reaches the ticket.
  virtual Ticket write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                                      std::uint32_t immediate) = 0;
  /// Likewise, in no order with other requests or answers. A small one may be sent before large
  /// ones that were posted earlier, and before what is behind these. is_sent() tells its end.
  virtual Ticket write_in_any_order(RemoteMemory to, ConstBytes data, ConstBytes header,
                                    std::uint32_t immediate) {
    return write_with_immediate(to, data, header, immediate);
  }
  /// Writes `data` to the peer's memory silently; `data` must stay until sent() reaches the ticket.
  virtual Ticket write(RemoteMemory to, ConstBytes data) = 0;
  /// Sends a message into the peer's next posted receive; it is copied.
  virtual Ticket send(ConstBytes message) = 0;
  virtual Ticket send_with_immediate(ConstBytes message, std::uint32_t immediate) = 0;
  /// Takes a receive of the peer and ends the validity of `key` there.
  virtual Ticket send_with_invalidate(std::uint32_t key) = 0;

  // For paths on which the peer offers regions (rdma/core/regions.hpp). At most kMaxUnconfirmed of
  // these two may be under way; QueuePairHandler::on_done() tells their end.

  /// Reads the peer's memory. `into` must stay until the end, or until the connection is closed;
  /// landing() tells where it may lie.
  virtual Ticket read(RemoteMemory /*from*/, MutableBytes /*into*/) {
    RTRS_ENSURE(!"this transport cannot read");
    return 0;
  }
  /// Writes the peer's memory. Its end says that the bytes are with the peer's device: all that
  /// comes behind them on this connection finds them there. They are neither durable then, nor need
  /// the peer's programs see them. `data` must stay until then.
  virtual Ticket write_confirmed(RemoteMemory /*to*/, ConstBytes /*data*/) {
    RTRS_ENSURE(!"this transport cannot confirm");
    return 0;
  }
  /// The memory in which the transport can put the data of read() for `into`: the same memory, or
  /// the window's own, which stays until the window is used again.
  virtual MutableBytes landing(std::uint32_t /*window*/, MutableBytes into) { return into; }

  /// Posts receives of `bytes` each (0 = for immediates only). They are used in the order of
  /// posting.
  virtual void post_receives(unsigned count, std::uint32_t bytes) = 0;

  /// Lets the peer write `memory` through this queue pair until withdraw(). `window` is the
  /// caller's name for it (a slot at the client; 0 for all chunks at the server); a window is
  /// exposed at most once at a time.
  virtual RemoteMemory expose(std::uint32_t window, MutableBytes memory) = 0;
  /// The peer says that the first `bytes` of the window's memory have arrived: puts them where
  /// expose() was told, if the transport receives into memory of its own. False when the transport
  /// can tell that they are not there.
  virtual bool collect(std::uint32_t /*window*/, std::uint32_t /*bytes*/) { return true; }
  /// Ends the exposure at once, also in the middle of an arriving write: the rest is dropped.
  virtual void withdraw(std::uint32_t window) = 0;
  /// Takes the memory of QueuePairHandler::detour() back in the middle of the write: the write goes
  /// where it was sent, with the bytes that have landed.
  virtual void end_detour() {}
  /// The caller takes memory back that was exposed or staged for the window, and nothing has told
  /// that the peer is done with it. To be called before withdraw(). Where the device itself works
  /// in that memory, this breaks the connection.
  virtual void abandon(std::uint32_t /*window*/) {}
  /// True: the device itself reads or writes memory of the caller for the window. Then only the end
  /// of the connection takes that memory back.
  virtual bool works_in_place(std::uint32_t /*window*/) const { return false; }
  /// Ends the exposure also for data on their way, and for the other connections of the path;
  /// on_revoked() tells when that is so. Only transports with keys of their own for every window
  /// can.
  virtual void revoke(std::uint32_t /*window*/) { RTRS_ENSURE(!"this transport cannot revoke"); }
  /// The memory from which the transport can send `data`: the same memory, or a copy in the
  /// window's own. The copy stays until the window is used again. `write_with_immediate()` sends
  /// from here.
  virtual ConstBytes stage(std::uint32_t /*window*/, ConstBytes data) { return data; }

  /// Hands everything posted to the transport ("rings the doorbell").
  virtual void flush() = 0;
  /// A message is arriving, of which a part has landed.
  virtual bool arriving() const { return false; }
  /// The number of posts for which the transport no longer reads memory. They are the first ones,
  /// if none overtakes another.
  virtual Ticket sent() const = 0;
  /// The transport no longer reads memory for this post.
  virtual bool is_sent(Ticket ticket) const { return ticket <= sent(); }
  /// Bytes that have come from the peer, and those of ours that its end has acknowledged, also in
  /// the midst of a message; grows. May cost a system call. Transports that cannot tell so early
  /// count what they know of.
  virtual std::uint64_t carried() const { return 0; }
  /// Copies the unsent data, so that the callers' memory may go (seldom: a caller cancels).
  virtual void disown_unsent() = 0;
  /// The same for what lies in this memory.
  virtual void disown_unsent_in(ConstBytes /*memory*/) { disown_unsent(); }
  /// Data may lie in any memory; otherwise in memory that the transport knows.
  virtual bool sends_from_anywhere() const { return false; }

  /// Once the connection stands. Zeros: the transport has nothing of the kind.
  virtual Binding binding() const { return {}; }

  static constexpr std::size_t kMaxInline = 512;
  static constexpr unsigned kMaxUnconfirmed = 16;
};

}  // namespace rtrs
