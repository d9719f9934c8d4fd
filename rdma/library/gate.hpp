// SPDX-License-Identifier: BSD-3-Clause
// The callers inside an object of the C interface, which somebody may close meanwhile.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "rdma/library/birthplace.hpp"
#include "rdma/library/include/rtrs.h"

namespace rtrs::library {

/// Counts the callers inside. Once it is closed nobody else comes in, and when the last one has
/// left nobody uses the object any more.
///
/// Threads: any.
class Gate {
 public:
  /// In a child of fork() nobody may be inside, and the object must not be destroyed.
  bool left_behind() const { return birthplace_.left(); }

  /// 0: the caller is inside until it leaves. Errors: RTRS_FORKED; ECANCELED: it is closed.
  int enter() {
    if (left_behind()) return RTRS_FORKED;
    if ((state_.fetch_add(1) & kClosed) == 0) return 0;
    leave();
    return ECANCELED;
  }
  /// The same, also when it is closed, for what must be given back. Nobody may wait until it is
  /// empty. Errors: RTRS_FORKED.
  int enter_even_closed() {
    if (left_behind()) return RTRS_FORKED;
    state_.fetch_add(1);
    return 0;
  }
  void leave() {
    // The one that waits may destroy this at once; notify_all() uses no more than the address.
    if (state_.fetch_sub(1) == kClosed + 1) state_.notify_all();
  }
  void close() { state_.fetch_or(kClosed); }
  bool is_closed() const { return (state_ & kClosed) != 0; }
  /// Only when it is closed.
  void wait_until_empty() const {
    for (std::uint32_t now = state_; now != kClosed; now = state_) state_.wait(now);
  }

 private:
  static constexpr std::uint32_t kClosed = 1U << 31;

  const Birthplace birthplace_{};
  std::atomic<std::uint32_t> state_{0};  ///< the number of those inside, and kClosed
};

/// While it lives, pthread_cancel() does not end this thread: it would take along what the others
/// need, a lock or the reading of answers.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// A call of the C interface. It is inside as long as this lives, or has been refused.
class Visit {
 public:
  /// `handle` may be null: EINVAL.
  template <class Handle>
  explicit Visit(Handle* handle, int (Gate::*enter)() = &Gate::enter)
      : gate_{handle != nullptr ? &handle->gate() : nullptr},
        refusal_{gate_ != nullptr ? (gate_->*enter)() : EINVAL} {}
  ~Visit() {
    if (refusal_ == 0) gate_->leave();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  /// An errno, or 0: the caller is inside.
  int refusal() const { return refusal_; }

 private:
  const NoCancellation no_cancellation_{};  // until it has left
  Gate* gate_;
  int refusal_;
};

}  // namespace rtrs::library
