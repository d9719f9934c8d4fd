// SPDX-License-Identifier: BSD-3-Clause
// The interface of a disk: a device of one server, or what an annex makes of several or of one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/changes_under_way.hpp"
#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/transfer.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Options of write_zeroes.
struct ZeroOptions {
  bool fua = false;
  bool may_unmap = false;  ///< the blocks may be given back
  bool fast = false;       ///< EOPNOTSUPP unless it is faster than writing zeroes
};

/// The lanes that a disk offers to event loops.
class LaneSource {
 public:
  virtual ~LaneSource() = default;
  /// The number is constant.
  virtual unsigned lanes() const = 0;
  /// Each lane belongs to one loop at a time.
  virtual std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) = 0;
};

/// One user's access to a disk. Offsets and lengths are bytes and need no alignment.
///
/// Every call blocks until its answer is there.
/// Errors:  0 for success, else an errno: the server's own, EIO (no answer will come), EINTR
///          (interrupted), EROFS (opened ro), EINVAL (range outside the disk), EOPNOTSUPP (the
///          server cannot).
/// Threads: any.
class Disk {
 public:
  /// Closes the disk after its last user, and waits a short time for the server.
  virtual ~Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  /// The geometry that this user knows. Its size dates from the opening, or from the last refresh.
  const DeviceGeometry& geometry() const { return geometry_; }
  virtual const std::string& name() const = 0;
  bool read_only() const { return read_only_ || geometry_.read_only; }
  /// Describes the user's access, for people.
  virtual const char* access_in_words() const = 0;
  /// The lanes for transfers after begin().
  virtual std::shared_ptr<LaneSource> lane_source() = 0;

  /// Asks the server for the size, and takes over growth since the opening. If the server cannot be
  /// asked, nothing changes. Other users of the disk keep the size that they know.
  ///
  /// Errors:  EINTR, EPROTO (nonsense from the server).
  /// Threads: the user's, before the first request.
  virtual tl::expected<void, rtrs::Failure> look_again(const rtrs::Interrupt& interrupt) = 0;

  /// This user sends no requests, and is not counted as a user for people. Once at most.
  virtual void only_observe() {}
  /// Takes over a size that another user has found. A smaller one changes nothing.
  ///
  /// Threads: its user's, while no call is under way.
  virtual void grow_to(std::uint64_t size) { grow(geometry_, size); }

  virtual int read(std::uint64_t offset, rtrs::MutableBytes data,
                   const rtrs::Interrupt& interrupt) = 0;
  virtual int write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                    const rtrs::Interrupt& interrupt) = 0;
  /// Makes all answered writes durable, of every connection. If some of them may have been lost, it
  /// returns EIO once.
  virtual int flush(const rtrs::Interrupt& interrupt) = 0;
  /// Says that the content is no longer needed. Partial blocks at the ends are left alone.
  virtual int discard(std::uint64_t offset, std::uint64_t length, bool fua,
                      const rtrs::Interrupt& interrupt) = 0;
  /// Uses the server's own zeroing when that does exactly the requested thing, else writes zeroes.
  virtual int write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                           const rtrs::Interrupt& interrupt) = 0;
  /// Finds data and holes. Appends at most `max_extents` adjacent runs, which start at `offset` and
  /// end inside the range. Their borders are multiples of DeviceGeometry::user_block(). They may
  /// cover less than the range, but never nothing.
  virtual int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                      std::vector<wire::Extent>& extents, const rtrs::Interrupt& interrupt) = 0;
  /// Asks the server to read ahead.
  virtual int cache(std::uint64_t offset, std::uint64_t length,
                    const rtrs::Interrupt& interrupt) = 0;

  /// State from begin() for end().
  struct Begun {
    std::optional<ChangesUnderWay::Place> place;  ///< of a change
    UnflushedWrites::Flush flush;
  };
  /// The same for event loops, which never wait. They run a TransferOperation over geometry() and
  /// handle() themselves, between begin() and end(). begin() may shrink the transfer, even to
  /// nothing.
  ///
  /// Errors: EAGAIN (use the blocking call), or the answer to the request.
  virtual int begin(Transfer& transfer, Begun& begun) = 0;
  /// Returns the answer to the request; EAGAIN: use the blocking call. `error` is the result of the
  /// operation, EINTR when it was cancelled.
  virtual int end(const Transfer& transfer, const Begun& begun, int error) = 0;
  virtual DeviceHandle& handle() = 0;

 protected:
  Disk(const DeviceGeometry& geometry, bool read_only)
      : geometry_{geometry}, read_only_{read_only} {}

  DeviceGeometry geometry_;
  bool read_only_;
};

}  // namespace rnbd
