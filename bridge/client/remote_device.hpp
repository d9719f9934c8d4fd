// SPDX-License-Identifier: BSD-3-Clause
// A block device somewhere else, as easy to use as a file descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/client/session.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd {

/// How zeroes may be written.
struct ZeroOptions {
  bool fua = false;
  bool may_unmap = false;  ///< the blocks may be given back
  bool fast = false;       ///< EOPNOTSUPP unless it is faster than writing zeroes
};

/// An open device. Offsets and lengths are bytes and need no alignment: partial blocks are read,
/// changed and written back in a way that loses no other write made through the same session.
///
/// Every call blocks until the server has answered, and is one of:
/// Errors:  0 for success, else an errno: what the server said, EIO (path died, or the outcome of
///          an earlier write is unknown), EINTR (interrupted), EROFS (opened ro), EINVAL (range
///          outside the device), EOPNOTSUPP (the server cannot); of the first change also EPERM
///          (another client writes to it) and ESTALE (one has written since this was opened).
/// Threads: any.
class RemoteDevice {
 public:
  /// Closes the device when this was its last user; waits for the server a short while.
  ~RemoteDevice();
  RemoteDevice(const RemoteDevice&) = delete;
  RemoteDevice& operator=(const RemoteDevice&) = delete;

  /// As its user knows it: the size is the one from when it was opened, or looked at again.
  const DeviceGeometry& geometry() const { return geometry_; }
  const std::string& name() const { return mapping_->device; }
  bool read_only() const { return read_only_ || geometry_.read_only; }
  /// Another client may write to it, as the server said when it was opened or looked at.
  bool in_use() const { return geometry_.in_use; }
  /// Another value than before: that client has written meanwhile.
  std::uint64_t sight() const { return geometry_.witness.sight; }
  /// Of its access, for people.
  const char* access_in_words() const;
  /// It is only read from here on.
  ///
  /// Threads: its user's, before the first request.
  void refuse_changes() { read_only_ = true; }
  Session& session() { return *session_; }

  /// Takes over what the device has grown by since it was opened. A server that cannot be asked
  /// now, or never, changes nothing. Users of the same device keep the size that they know.
  ///
  /// Errors:  EINTR, EPROTO (nonsense from the server).
  /// Threads: its user's, before the first request.
  tl::expected<void, Failure> look_again(const Interrupt& interrupt);

  /// It has `size` bytes by now, another user of it has found out. Less changes nothing.
  ///
  /// Threads: its user's, while no call is under way.
  void grow_to(std::uint64_t size) { grow(geometry_, size); }

  int read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt);
  int write(std::uint64_t offset, rtrs::ConstBytes data, bool fua, const Interrupt& interrupt);
  /// Makes all writes durable that were answered before, by whatever connection they went. Once
  /// EIO, if the server's machine may have lost some of them meanwhile.
  int flush(const Interrupt& interrupt);
  /// Says that the content is no longer needed. Partial blocks at the ends are left alone.
  int discard(std::uint64_t offset, std::uint64_t length, bool fua, const Interrupt& interrupt);
  /// Uses the server's own zeroing when that does exactly what is asked, else writes zeroes.
  int write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                   const Interrupt& interrupt);
  /// Where there is data: appends runs that start at `offset`, touch each other and end inside the
  /// range; at most `max_extents`, with borders at multiples of DeviceGeometry::user_block(). They
  /// may cover less than was asked, but never nothing.
  int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
              std::vector<wire::Extent>& extents, const Interrupt& interrupt);
  /// Asks the server to read ahead.
  int cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt);

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
  int begin(Transfer& transfer, Begun& begun);
  /// Returns the request's answer; EAGAIN: the blocking call may still do it. `error` is that of
  /// the operation, EINTR when it was cancelled.
  int end(const Transfer& transfer, const Begun& begun, int error);
  DeviceHandle& handle() { return mapping_->handle; }

 private:
  friend class Session;
  RemoteDevice(std::shared_ptr<Session> session, std::shared_ptr<Session::Mapping> mapping,
               bool read_only);

  int begin_change(Transfer& transfer, Begun& begun);
  int claim(const Interrupt& interrupt);
  int run(const Transfer& transfer, const Interrupt& interrupt);
  int run(rtrs::Operation& operation, const Interrupt& interrupt);
  int run_shared(const Transfer& transfer, const Interrupt& interrupt);
  int run_alone(const Transfer& transfer, const Interrupt& interrupt);
  int check_change(std::uint64_t offset, std::uint64_t length) const;
  bool inside(std::uint64_t offset, std::uint64_t length) const;
  int read_partial(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt);
  int patch(std::uint64_t offset, std::uint64_t length, const std::byte* from, bool fua,
            const Interrupt& interrupt);
  int patch_inside(std::uint64_t offset, std::uint64_t length, const std::byte* from, bool fua,
                   const Interrupt& interrupt);
  int write_any(const Transfer& whole, const Interrupt& interrupt);
  int write_parts(const Transfer& whole, const Interrupt& interrupt);
  int zero_blocks(const Transfer& transfer, const Interrupt& interrupt);

  std::shared_ptr<Session> session_;
  std::shared_ptr<Session::Mapping> mapping_;
  DeviceGeometry geometry_;
  bool read_only_;
  std::atomic<bool> may_change_;            ///< the writer's reservation covers this user
  std::atomic<std::uint64_t> losses_told_;  ///< to the user of this one
};

}  // namespace rnbd
