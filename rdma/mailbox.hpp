// SPDX-License-Identifier: BSD-3-Clause
// Ways into a thread that waits in poll(2).
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "rdma/owned_fd.hpp"

namespace rtrs {

/// A descriptor that is readable from wake() until clear().
///
/// Threads: any.
class WakeUp {
 public:
  /// Errors: std::system_error.
  WakeUp() : event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
    if (!event_) throw std::system_error{errno, std::generic_category(), "eventfd"};
  }

  int descriptor() const { return event_.get(); }
  void wake() const { eventfd_write(event_.get(), 1); }
  void clear() const {
    eventfd_t ignored;
    eventfd_read(event_.get(), &ignored);
  }

 private:
  OwnedFd event_;
};

/// Hands letters to one thread, in the order in which they are posted, and wakes it up once for all
/// that come together.
///
/// Threads: any; descriptor() and take() are for the one.
template <class Letter>
class Mailbox {
 public:
  void post(Letter letter) {
    post_several([&](std::vector<Letter>& letters) { letters.push_back(std::move(letter)); });
  }
  /// Posts the letters that `add` appends; it runs with the lock.
  template <class Add>
  void post_several(const Add& add) {
    const std::lock_guard lock{mutex_};
    const bool woken = !letters_.empty();
    add(letters_);
    if (!woken) wake_.wake();
  }

  /// Readable while there is something to take.
  int descriptor() const { return wake_.descriptor(); }
  /// Swaps `letters`, which is empty, for all that came since the last time.
  void take(std::vector<Letter>& letters) {
    const std::lock_guard lock{mutex_};
    wake_.clear();  // with the lock: a letter that is taken must not wake anybody afterwards
    letters.swap(letters_);
  }

 private:
  WakeUp wake_;
  std::mutex mutex_;
  std::vector<Letter> letters_;  ///< guarded by mutex_
};

}  // namespace rtrs
