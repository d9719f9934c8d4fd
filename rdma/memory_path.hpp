// SPDX-License-Identifier: BSD-3-Clause
// A path beside a session's others, over which its client reads and writes memory of the server
// that the server was asked to expose, without a program there.
//
// Internal, and without a stable ABI: other programs use rdma/library/include/rtrs.h.
#pragma once

#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/queue_pair.hpp"

namespace rtrs {

/// A refused access kills its connection, so such accesses have a path of their own. It dies alone,
/// and never comes back: the keys that it was given die with it. The fate of a write that was under
/// way then is unknown, until the server says over the session that this path has ended there.
///
/// Threads: any, except the destructor (nobody may be inside).
/// Source:  docs/protocol.md, memory paths.
class MemoryPath {
 public:
  virtual ~MemoryPath() = default;

  /// By which the server knows it.
  virtual const wire::Uuid& uuid() const = 0;
  virtual bool alive() const = 0;
  virtual std::string failure() const = 0;  ///< why it is not; "" while it is

  /// Reads the server's memory, of at most Regions::kMaxRegion bytes.
  ///
  /// Errors: EIO (the path died; `into` is undefined), EINTR (interrupted, which ends the path).
  virtual int read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt) = 0;
  /// Writes it. Success says that the bytes are with the server's device: what is read over the
  /// same path later sees them. Neither do the server's programs have to, nor are they durable.
  ///
  /// Errors: EIO, EINTR: some of the bytes may have been written, and more may follow.
  virtual int write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) = 0;
  /// When it returns 0, the server's programs see all that write() has confirmed before. `readable`
  /// names 8 bytes that this path may read.
  ///
  /// Errors: as read().
  virtual int settle(RemoteMemory readable, const Interrupt& interrupt) = 0;
  /// write() of at least a byte, and settle() for these bytes, in one wait. `to` is readable, too.
  ///
  /// Errors: as write().
  virtual int write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) = 0;

  /// Memory that need not be copied over RDMA. It stays the caller's, and must stay until it is
  /// forgotten. Errors: ENOMEM (it cannot be locked), EIO (the path died).
  virtual tl::expected<void, Failure> register_memory(MutableBytes memory) = 0;
  virtual void forget_memory(MutableBytes memory) = 0;
};

}  // namespace rtrs
