// SPDX-License-Identifier: BSD-3-Clause
// A queue pair on a TCP socket.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "rdma/transport/connection.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/region_table.hpp"
#include "rdma/transport/tcp/send_buffer.hpp"
#include "rdma/transport/tcp/send_queue.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rtrs::tcp {

/// Digests in use on one connection.
struct Digests {
  bool header = true;
  bool data = true;
};

/// Emulates a reliable connection: frames carry the operations; the receiver checks every address
/// against its exposed memory before a byte lands there. Payloads are received straight into that
/// memory; only bytes that arrived together with a header are copied.
///
/// Threads: one at a time.
/// Source:  docs/protocol.md, TCP binding.
class TcpQueuePair final : public Connection {
 public:
  /// `regions`: what the peer may use by itself; null: nothing.
  TcpQueuePair(Stream stream, Digests digests, std::shared_ptr<RegionTable> regions = nullptr);
  ~TcpQueuePair() override;
  TcpQueuePair(const TcpQueuePair&) = delete;
  TcpQueuePair& operator=(const TcpQueuePair&) = delete;

  Ticket write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                              std::uint32_t immediate) override;
  Ticket write_in_any_order(RemoteMemory to, ConstBytes data, ConstBytes header,
                            std::uint32_t immediate) override;
  Ticket write(RemoteMemory to, ConstBytes data) override;
  Ticket send(ConstBytes message) override;
  Ticket send_with_immediate(ConstBytes message, std::uint32_t immediate) override;
  Ticket send_with_invalidate(std::uint32_t key) override;
  Ticket read(RemoteMemory from, MutableBytes into) override;
  Ticket write_confirmed(RemoteMemory to, ConstBytes data) override;
  void post_receives(unsigned count, std::uint32_t bytes) override;
  RemoteMemory expose(std::uint32_t window, MutableBytes memory) override;
  bool collect(std::uint32_t window, std::uint32_t bytes) override;
  void withdraw(std::uint32_t window) override;
  void flush() override;
  Ticket sent() const override { return queue_.sent(); }
  bool is_sent(Ticket ticket) const override { return queue_.is_sent(ticket); }
  bool arriving() const override { return arrival_.active; }
  std::uint64_t carried() const override { return bytes_carried(stream_.descriptor()); }
  void disown_unsent() override { queue_.disown(); }
  void disown_unsent_in(ConstBytes memory) override { queue_.disown(memory); }
  bool sends_from_anywhere() const override { return true; }
  void end_detour() override;

  Status progress(QueuePairHandler& handler) override;
  int descriptor() const override { return stream_.descriptor(); }
  bool begin_await(OneCall* call, bool shared) override;
  bool await() override;
  void end_await() override;
  bool wants_to_write() const override {
    return stream_.is_open() && (!queue_.empty() || stream_.has_unsent());
  }
  void close() override;
  const std::string& failure() const override { return failure_; }
  const Identity* peer() const override { return stream_.peer(); }
  /// The key of this region has ended, perhaps in the middle of a write to it.
  void on_retired(ConstBytes region);
  /// For the hello, which goes before all frames.
  Stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kStaging = 64 * 1024;
  static constexpr unsigned kGenerationBits = 8;  ///< of a key; the rest is its window

  struct Window {
    MutableBytes memory;
    std::uint8_t generation = 0;
    bool exposed = false;
    std::uint64_t landed = 0;  ///< bytes from its start on, since it was exposed
  };
  struct Receives {
    std::uint64_t count;
    std::uint32_t bytes;
  };
  /// The place for the payload of the frame at hand.
  struct Arrival {
    FrameHeader header;
    std::uint32_t window = 0;
    std::byte* target = nullptr;  ///< null: dropped
    MutableBytes detour;          ///< where the first bytes go instead
    std::uint32_t done = 0;       ///< bytes of payload received
    std::uint32_t crc = kCrcStart;
    bool active = false;
    bool in_region = false;
    bool refused = false;  ///< the key of its region ended meanwhile

    /// The memory that follows, from byte `from` of the payload on, as far as it is one piece.
    MutableBytes place(std::size_t from) const {
      if (from < detour.size()) return detour.subspan(from);
      return {target != nullptr ? target + from : nullptr, header.length - from};
    }
  };

  // queue_pair.cpp
  void seal(FrameHeader& header, ConstBytes data, ConstBytes inlined) const;
  Ticket post(FrameHeader header, ConstBytes data, ConstBytes inlined,
              FrameOrder order = FrameOrder::kept);
  Ticket post_owned(FrameHeader header, ConstBytes message);
  bool take_receive();
  bool fail(std::string why);
  bool fail(const char* what, int error);

  // queue_pair_receive.cpp
  Status receive_some(QueuePairHandler& handler);
  Status take(QueuePairHandler& handler, ssize_t result, std::size_t direct, std::size_t room);
  std::size_t room() const { return std::min(read_size_, kStaging - staged_); }
  bool consume(QueuePairHandler& handler, ConstBytes bytes, std::size_t& used);
  bool find_room(QueuePairHandler& handler, const FrameHeader& header);
  bool begin(QueuePairHandler& handler, const FrameHeader& header);
  bool begin_write(QueuePairHandler& handler, const FrameHeader& header);
  bool begin_send(const FrameHeader& header);
  void land(ConstBytes bytes);
  static void note_landed(Window& window, const FrameHeader& header);
  bool end(QueuePairHandler& handler);

  // queue_pair_regions.cpp
  bool begin_region_write(const FrameHeader& header);
  bool begin_read(const FrameHeader& header);
  bool begin_read_data(const FrameHeader& header);
  bool answer_read(const FrameHeader& header);
  Complaint end_read(QueuePairHandler& handler);

  Stream stream_;
  Digests digests_;
  SendQueue queue_;
  std::vector<Window> windows_;
  std::deque<Receives> receives_;
  Arrival arrival_;
  std::vector<std::byte> message_;  ///< payload of a send
  std::unique_ptr<std::byte[]> staging_;
  /// Bytes in staging_: no complete header yet, or, if it starves, a header and more.
  std::size_t staged_ = 0;
  bool starves_ = false;   ///< the handler has no room for the write whose header is staged
  std::size_t read_size_;  ///< how much to read at a header
  ssize_t awaited_;  ///< bytes behind those staged, or a negative errno; await() to progress()
  std::shared_ptr<RegionTable> regions_;
  std::unique_ptr<ReadAnswers> answers_;  ///< with regions_
  std::unique_ptr<RemoteReads> reads_;    ///< from the first read() on
  bool may_block_ = false;                ///< the socket is set up for await()
  OneCall* call_ = nullptr;               ///< of an await() that sends
  std::size_t pieces_ = 0;                ///< that it sends
  ssize_t call_sent_ = 0;                 ///< bytes that it has sent, or -errno
  std::string failure_;
};

}  // namespace rtrs::tcp
