// SPDX-License-Identifier: BSD-3-Clause
// One connection of a memory path, driven by those who wait for it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "rdma/client.hpp"
#include "rdma/transport/connection.hpp"

namespace rtrs {

/// Cuts transfers into pieces that fit into windows, and has several of them under way.
///
/// Threads: any.
class MemoryLane final : public QueuePairHandler {
 public:
  /// Bytes of a window, and so the longest piece.
  static constexpr std::uint32_t kPiece = 128 * 1024;
  static constexpr unsigned kWindows = QueuePair::kMaxUnconfirmed;

  /// With kWindows windows of kPiece bytes. `on_broken` is called once at most, from any thread.
  MemoryLane(std::unique_ptr<Connection> connection, std::function<void(std::string)> on_broken);

  /// Errors: EIO, EINTR; see MemoryPath.
  int read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt);
  int write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt);
  /// A read behind all writes that have ended pushes them out of the server's device.
  int settle(RemoteMemory readable, const Interrupt& interrupt);
  int write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt);

  tl::expected<void, Failure> register_memory(MutableBytes memory);
  void forget_memory(MutableBytes memory);

  /// Something has come since it was asked last.
  bool heard() { return heard_.exchange(false); }
  /// Ends the connection: the transport touches nobody's memory from here on.
  void close(const std::string& why);

 private:
  /// One caller's read or write. Of `into` and `from` one is used.
  struct Transfer {
    RemoteMemory where;
    MutableBytes into;
    ConstBytes from;
    bool is_read;
    std::size_t posted = 0;  ///< bytes
    unsigned under_way = 0;  ///< pieces
    std::size_t size() const { return is_read ? into.size() : from.size(); }
    bool done() const { return posted == size() && under_way == 0; }
  };
  /// In the order of posting.
  struct Piece {
    Ticket ticket = 0;
    Transfer* transfer = nullptr;
    MutableBytes into;     ///< a read: where the caller wants it
    MutableBytes landing;  ///< and where it lands
  };

  int run(std::span<Transfer> transfers, const Interrupt& interrupt);
  void post(std::span<Transfer> transfers);
  void post_piece(Transfer& transfer, std::size_t size);
  bool drive(std::unique_lock<std::mutex>& lock);
  void take_arrivals();
  void break_off(std::string why);
  [[nodiscard]] Complaint on_done(Ticket ticket) override;
  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t, std::uint32_t) override {
    return "an immediate on a connection for memory";
  }
  [[nodiscard]] Complaint on_message(ConstBytes, std::optional<std::uint32_t>) override {
    return "a message on a connection for memory";
  }

  std::mutex mutex_;  ///< guards all but heard_
  std::condition_variable changed_;
  std::unique_ptr<Connection> connection_;
  std::function<void(std::string)> on_broken_;
  std::array<Piece, kWindows> pieces_;
  std::size_t first_ = 0;  ///< of pieces_, modulo its size
  std::size_t end_ = 0;
  std::uint64_t written_ = 0;  ///< pieces of writes that have ended
  std::uint64_t settled_ = 0;  ///< those of them that were followed by a read
  bool driven_ = false;        ///< some caller waits for arrivals
  bool broken_ = false;
  std::atomic<bool> heard_{false};
};

}  // namespace rtrs
