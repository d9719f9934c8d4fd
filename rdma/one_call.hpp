// SPDX-License-Identifier: BSD-3-Clause
// Sending and waiting for what comes next, in one system call.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "rdma/core/time.hpp"

namespace rtrs {

/// For an event loop that has one thing to send and then only one socket to wait for. Sending and
/// receiving take two system calls otherwise.
///
/// Threads: one, the first that uses it.
class OneCall {
 public:
  /// Most bytes to send: 16 KiB of data, and headers. A socket takes so many at once, unless its
  /// peer does not read.
  static constexpr std::size_t kMost = std::size_t{16} * 1024 + 256;

  struct Result {
    ssize_t sent = 0;      ///< bytes, or -errno; -EAGAIN: the socket is full
    ssize_t received = 0;  ///< bytes, 0 at the end, or -errno; -EAGAIN: nothing has come
  };

  virtual ~OneCall() = default;
  /// Sends `from`, and waits until something comes, for `limit` at most. The socket must be one
  /// that may block. Afterwards no memory of the caller is in use.
  virtual Result exchange(int socket, std::span<const iovec> from, std::span<std::byte> into,
                          Duration limit) = 0;

  /// For the sender: what is sent, and memory for what would change its place meanwhile.
  std::array<iovec, 3> pieces;
  std::array<std::byte, kMost> copy;
};

/// Makes one for the thread that calls it. Null: the kernel has none, or forbids it.
using MakeOneCall = std::function<std::unique_ptr<OneCall>()>;

/// By io_uring, from Linux 6.1 on. Null: see MakeOneCall.
std::unique_ptr<OneCall> make_uring_call();

}  // namespace rtrs
