// SPDX-License-Identifier: BSD-3-Clause
// The name of an open device in requests, and the debt of its changes to a flush.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "rdma/core/unresolved.hpp"

namespace rnbd {

/// An id that servers answer like that of a device which is not open.
inline constexpr std::uint32_t kNoDevice = 0xFFFF'FFFF;

/// Knows whether there are unflushed writes: the server has answered them, but need not have made
/// them durable. A flush must not call them durable when the server's machine has lost them.
///
/// Threads: any.
/// Source:  docs/protocol.md, RTRS extension.
class UnflushedWrites {
 public:
  /// A change was answered that is not durable by itself. On the path of every write.
  void note() {
    // The line stays shared among the writers, except after a flush.
    if (!pending_.load(std::memory_order_relaxed)) pending_.store(true, std::memory_order_relaxed);
  }

  struct Flush {
    bool covers = false;       ///< there was something to make durable
    std::uint64_t losses = 0;  ///< so many before it
  };
  /// Before the flush is sent.
  Flush begin_flush() {
    std::lock_guard lock{mutex_};
    const bool covers = pending_.exchange(false);
    if (covers) ++flushing_;
    return {covers, losses_};
  }
  /// The server has answered it with `error`, or did not answer. Returns the result for its user;
  /// `told` counts the losses known to that user. It is EIO when the flush came too late for lost
  /// writes, whatever the server says.
  int end_flush(const Flush& flush, int error, std::atomic<std::uint64_t>& told);

  /// Changes that were not durable may be gone. False: nothing was.
  bool lose();
  /// The losses of which somebody knows. A new user starts with them, and hears of the others.
  std::uint64_t told() const {
    std::lock_guard lock{mutex_};
    return told_;
  }

 private:
  std::atomic<bool> pending_{false};
  mutable std::mutex mutex_;
  unsigned flushing_ = 0;     ///< flushes under way that cover something; guarded by mutex_
  std::uint64_t losses_ = 0;  ///< guarded by mutex_
  std::uint64_t told_ = 0;    ///< guarded by mutex_
};

/// In which life of the server's machine writes were answered.
///
/// Threads: one at a time.
/// Source:  docs/protocol.md, RTRS extension.
class VolatileEpoch {
 public:
  /// A session with this epoch takes the place of the last one; 0: its server does not say. True:
  /// the machine was restarted in between.
  bool enter(std::uint64_t epoch);

 private:
  std::uint64_t known_ = 0;
};

/// The id by which requests reach an open device, and the state that they leave behind.
///
/// Threads: any; the id is read with a lane held, and changes only while no lane sends.
struct DeviceHandle {
  std::atomic<std::uint32_t> id{kNoDevice};  ///< another one in each session with the server
  /// The messages to it, and those that close it, that nobody waits for any more.
  std::shared_ptr<rtrs::Unresolved> unresolved = std::make_shared<rtrs::Unresolved>();
  UnflushedWrites unflushed;
};

}  // namespace rnbd
