// SPDX-License-Identifier: BSD-3-Clause
// Reads, writes, flushes, discards and zeroing of any length as one rtrs operation.
#pragma once

#include <array>
#include <cstdint>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/core/client_lane.hpp"

namespace rnbd {

/// An operation on a range of a device.
///
/// Units: bytes; DeviceGeometry::is_aligned() holds for the range, and it lies inside padded_size.
struct Transfer {
  wire::IoOperation operation = wire::IoOperation::read;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;         ///< 0 for a flush
  std::byte* into = nullptr;        ///< read: `length` bytes of room
  const std::byte* from = nullptr;  ///< write: `length` bytes; null writes zeroes
  bool fua = false;                 ///< durable when finished
  bool copy = false;                ///< write, write_zeroes: as wire::kIoCopy
  bool no_unmap = false;            ///< write_zeroes: keep the blocks allocated
  bool fast = false;                ///< write_zeroes: EOPNOTSUPP rather than slow
};

/// Splits one transfer into requests that the session can carry, up to 16 of them in flight.
///
/// After an error nothing more is sent, requests in flight are waited for, and the first error is
/// the operation's. The server's machine may lose writes that were answered but not made durable;
/// only a flush reports that. If the session was recovered before all pieces of a write were
/// answered, the answered pieces are sent once more.
///
/// Errors:  EINVAL (range not aligned or outside the device), EOPNOTSUPP (the server cannot; a
///          caller may write zeroes instead), or the server's own.
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
  /// It was never started: another way has carried it out, with this answer.
  void end(int error) { finish(error); }

 private:
  struct Fragment {
    rtrs::Request request;
    wire::Io io;
    TransferOperation* owner = nullptr;
    unsigned index = 0;
    unsigned renewals = 0;  ///< of the session, with those before it was sent
  };
  /// Room for one. An array of std::optional would be cleared as a whole for every operation: most
  /// have one fragment, and all of them are 2.7 KiB.
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
  bool is_change() const;
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
  bool flush_follows_ = false;  ///< the pieces are made durable by a flush behind them
  bool flush_due_ = false;      ///< a flush is to be sent when nothing is in flight
  bool sending_ = false;
  unsigned renewals_ = 0;  ///< of the session since the start
  /// Offsets of the pieces that were in flight at the last one: they go on by themselves.
  std::array<std::uint64_t, kWindow> kept_;
  unsigned kept_count_ = 0;
  std::array<Room, kWindow> fragments_;  ///< those that are busy
};

}  // namespace rnbd
