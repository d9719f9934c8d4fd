// SPDX-License-Identifier: BSD-3-Clause
// Reads, writes, flushes, discards and zeroing of any length as one rtrs operation.
#pragma once

#include <array>
#include <cstdint>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/core/client/lane.hpp"

namespace rnbd {

/// An operation on a range of a device.
///
/// Units: bytes. For a TransferOperation the range lies inside padded_size, and
/// DeviceGeometry::is_aligned() is true for it.
struct Transfer {
  wire::IoOperation operation = wire::IoOperation::read;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;         ///< 0 for a flush
  std::byte* into = nullptr;        ///< read: `length` bytes of room
  const std::byte* from = nullptr;  ///< write: `length` bytes; null writes zeroes
  bool fua = false;                 ///< durable when finished
  bool for_change = false;          ///< read: sees what unresolved changes leave, as a change does
  bool copy = false;                ///< write, write_zeroes: as wire::kIoCopy
  bool no_unmap = false;            ///< write_zeroes: keep the blocks allocated
  bool fast = false;                ///< write_zeroes: EOPNOTSUPP rather than slow

  bool changes() const {
    return operation != wire::IoOperation::read && operation != wire::IoOperation::flush;
  }
  /// The same for the bytes [begin, end) of the range.
  Transfer part(std::uint64_t begin, std::uint64_t end) const {
    Transfer part = *this;
    part.offset = begin;
    part.length = end - begin;
    if (into != nullptr) part.into += begin - offset;
    if (from != nullptr) part.from += begin - offset;
    return part;
  }
};

/// Splits one transfer into requests of the session's size, with up to 16 in flight.
///
/// After an error it sends no more, waits for requests in flight, and ends with the first error.
/// The server's machine may lose answered writes that are not durable; only a flush reports that.
/// If the session is recovered while some pieces of a write are unanswered, the answered pieces are
/// sent once more.
///
/// Errors:  EINVAL (range not aligned or outside the device), EOPNOTSUPP (not supported by the
///          server; a caller may write zeroes instead), or the server's own.
/// Threads: as rtrs::Operation. No memory is allocated.
/// Source:  docs/protocol.md, RNBD I/O.
class TransferOperation final : public rtrs::Operation {
 public:
  static constexpr unsigned kWindow = 16;  ///< requests in flight

  /// `geometry`, `handle` and the memory of `transfer` must outlive the operation.
  TransferOperation(const DeviceGeometry& geometry, DeviceHandle& handle, const Transfer& transfer);

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override;

  const Transfer& transfer() const { return transfer_; }
  /// Sets the answer of an operation that was never started, because it was done in another way.
  void end(int error) { finish(error); }

 private:
  struct Fragment {
    rtrs::Request request;
    wire::Io io;
    TransferOperation* owner = nullptr;
    unsigned index = 0;
    unsigned renewals = 0;  ///< of the session, with those before it was sent
  };
  /// Room for one fragment. An array of std::optional would be cleared as a whole, 2.7 KiB, for
  /// every operation, and most operations have one fragment.
  union Room {
    Room() {}
    Fragment fragment;
  };

  int complaint() const;
  std::uint64_t largest_piece() const;
  std::uint64_t piece_at(std::uint64_t offset) const;
  bool honours_fua() const;
  std::uint32_t flags() const;
  void send_pieces(rtrs::ClientLane& lane);
  void start_over();
  bool is_kept(std::uint64_t offset) const;
  void submit_piece(rtrs::ClientLane& lane, std::uint64_t length);
  void submit_flush(rtrs::ClientLane& lane);
  Fragment& take_fragment(wire::IoOperation operation, std::uint32_t rw);
  bool needs_flush() const;
  void renewed(Fragment& fragment);
  static void on_renew(rtrs::Request& request);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  const DeviceGeometry& geometry_;
  DeviceHandle& handle_;
  Transfer transfer_;
  std::uint64_t next_;  ///< first byte not yet sent
  std::uint64_t end_;
  std::uint64_t piece_ = 0;  ///< bytes per request
  std::uint32_t busy_ = 0;   ///< bit i: fragments_[i] is in flight
  int first_error_ = 0;
  bool flush_follows_ = false;  ///< a flush after the pieces makes them durable
  bool flush_due_ = false;      ///< a flush is to be sent when nothing is in flight
  bool sending_ = false;
  unsigned renewals_ = 0;  ///< of the session since the start
  /// Offsets of the pieces in flight at the last recovery. They go on by themselves.
  std::array<std::uint64_t, kWindow> kept_;
  unsigned kept_count_ = 0;
  std::array<Room, kWindow> fragments_;  ///< those that are busy
};

}  // namespace rnbd
