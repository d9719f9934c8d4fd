// SPDX-License-Identifier: BSD-3-Clause
// A disk as its users see it, wherever its bytes are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/client/changes_under_way.hpp"
#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/transfer.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// How zeroes may be written.
struct ZeroOptions {
  bool fua = false;
  bool may_unmap = false;  ///< the blocks may be given back
  bool fast = false;       ///< EOPNOTSUPP unless it is faster than writing zeroes
};

/// Lanes for the event loops that use a disk.
class LaneSource {
 public:
  virtual ~LaneSource() = default;
  /// The number is constant.
  virtual unsigned lanes() const = 0;
  /// At most one loop at a time for each of them.
  virtual std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) = 0;
};

/// A disk in the hands of one user. Offsets and lengths are bytes and need no alignment.
///
/// Every call blocks until it is answered.
/// Errors:  0 for success, else an errno: the server's own, EIO (no answer will come), EINTR
///          (interrupted), EROFS (opened ro), EINVAL (range outside the disk), EOPNOTSUPP (the
///          server cannot).
/// Threads: any.
class Disk {
 public:
  /// Closes the disk when this was its last user; waits for the server a short while.
  virtual ~Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  /// As its user knows it: the size is the one from when it was opened, or looked at again.
  const DeviceGeometry& geometry() const { return geometry_; }
  virtual const std::string& name() const = 0;
  bool read_only() const { return read_only_ || geometry_.read_only; }
  /// Of its access, for people.
  virtual const char* access_in_words() const = 0;
  /// Where event loops get their lanes for transfers that begin() has begun.
  virtual std::shared_ptr<LaneSource> lane_source() = 0;

  /// Takes over the growth of the disk since it was opened. A server that cannot be asked now, or
  /// never, changes nothing. Other users of the same disk keep the size that they know.
  ///
  /// Errors:  EINTR, EPROTO (nonsense from the server).
  /// Threads: its user's, before the first request.
  virtual tl::expected<void, rtrs::Failure> look_again(const rtrs::Interrupt& interrupt) = 0;

  /// It has `size` bytes by now, another user of it has found out. Less changes nothing.
  ///
  /// Threads: its user's, while no call is under way.
  virtual void grow_to(std::uint64_t size) { grow(geometry_, size); }

  virtual int read(std::uint64_t offset, rtrs::MutableBytes data,
                   const rtrs::Interrupt& interrupt) = 0;
  virtual int write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                    const rtrs::Interrupt& interrupt) = 0;
  /// Makes all writes durable that were answered before, over any connection. Returns EIO once, if
  /// some of them may have been lost meanwhile.
  virtual int flush(const rtrs::Interrupt& interrupt) = 0;
  /// Says that the content is no longer needed. Partial blocks at the ends are left alone.
  virtual int discard(std::uint64_t offset, std::uint64_t length, bool fua,
                      const rtrs::Interrupt& interrupt) = 0;
  /// Uses the server's own zeroing when that does exactly the requested thing, else writes zeroes.
  virtual int write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                           const rtrs::Interrupt& interrupt) = 0;
  /// Where there is data: appends runs that start at `offset`, touch each other and end inside the
  /// range; at most `max_extents`, with borders at multiples of DeviceGeometry::user_block(). They
  /// may cover less than was asked, but never nothing.
  virtual int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                      std::vector<wire::Extent>& extents, const rtrs::Interrupt& interrupt) = 0;
  /// Asks the server to read ahead.
  virtual int cache(std::uint64_t offset, std::uint64_t length,
                    const rtrs::Interrupt& interrupt) = 0;

  /// State from begin() for end().
  struct Begun {
    bool in_gate = false;
    ChangesUnderWay::Place place = 0;  ///< in the gate
    UnflushedWrites::Flush flush;
  };
  /// The same for event loops, which never wait: they run a TransferOperation over geometry() and
  /// handle() themselves, between begin() and end(). begin() may make the transfer smaller, also
  /// empty.
  ///
  /// Errors: EAGAIN (only the blocking call can do this), or the request's answer.
  virtual int begin(Transfer& transfer, Begun& begun) = 0;
  /// Returns the request's answer; EAGAIN: the blocking call may still do it. `error` is that of
  /// the operation, EINTR when it was cancelled.
  virtual int end(const Transfer& transfer, const Begun& begun, int error) = 0;
  virtual DeviceHandle& handle() = 0;

 protected:
  Disk(const DeviceGeometry& geometry, bool read_only)
      : geometry_{geometry}, read_only_{read_only} {}

  DeviceGeometry geometry_;
  bool read_only_;
};

}  // namespace rnbd
