// SPDX-License-Identifier: BSD-3-Clause
// The id of an open device in requests, and its writes that need a flush.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "rdma/core/unresolved.hpp"

namespace rnbd {

/// An id that is never open. Servers answer it as they answer any closed device.
inline constexpr std::uint32_t kNoDevice = 0xFFFF'FFFF;

/// Notes unflushed writes: the server has answered them, but may not have made them durable. If the
/// server's machine loses them, the next flush must fail.
///
/// Threads: any.
/// Source:  docs/protocol.md, RTRS extension.
class UnflushedWrites {
 public:
  /// The server has answered a write that is not durable by itself. Every write calls this.
  void note() {
    // The cache line stays shared among the writers, except after a flush.
    if (!pending_.load(std::memory_order_relaxed)) pending_.store(true, std::memory_order_relaxed);
  }

  struct Flush {
    bool covers = false;       ///< there was something to make durable
    std::uint64_t losses = 0;  ///< the number of losses before it
  };
  /// Call it before the flush is sent.
  Flush begin_flush() {
    std::lock_guard lock{mutex_};
    const bool covers = pending_.exchange(false);
    if (covers) ++flushing_;
    return {covers, losses_};
  }
  /// Call it with the server's answer, or an errno if there is none. Returns the result for the
  /// user. That is EIO if writes were lost before the flush, even if the server answers with
  /// success. `told` counts the losses that the user knows.
  int end_flush(const Flush& flush, int error, std::atomic<std::uint64_t>& told);

  /// Some writes may not be durable.
  bool pending() const {
    std::lock_guard lock{mutex_};
    return pending_.load() || flushing_ != 0;
  }
  /// Writes that were not durable may be lost. False: there were none.
  bool lose();
  std::uint64_t losses() const {
    std::lock_guard lock{mutex_};
    return losses_;
  }
  /// The losses that some user knows. A new user starts with this number, and hears of later
  /// losses.
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

/// The run of the server's machine in which writes were answered.
///
/// Threads: one at a time.
/// Source:  docs/protocol.md, RTRS extension.
class VolatileEpoch {
 public:
  /// A session with this epoch replaces the last one; 0: the server has no epoch. True: the machine
  /// was restarted in between.
  bool enter(std::uint64_t epoch);
  std::uint64_t known() const { return known_; }
  /// The same of two epochs.
  static bool differ(std::uint64_t was, std::uint64_t is) {
    return was != 0 && is != 0 && was != is;
  }

 private:
  std::uint64_t known_ = 0;
};

/// The id of an open device in requests, and the state that its requests leave behind.
///
/// Threads: any; the id is read with a lane held, and changes only while no lane sends.
struct DeviceHandle {
  std::atomic<std::uint32_t> id{kNoDevice};  ///< different in each session with the server
  /// Counts cancelled messages to the device, including those that close it.
  std::shared_ptr<rtrs::Unresolved> unresolved = std::make_shared<rtrs::Unresolved>();
  UnflushedWrites unflushed;
};

}  // namespace rnbd
