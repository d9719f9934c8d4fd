// SPDX-License-Identifier: BSD-3-Clause
// The process in which a client or server was made. A child of fork() has a copy of its memory, but
// none of its threads, and locks that nobody opens. It has the same connections, and the numbers of
// the parent's next requests.
#pragma once

#include <atomic>

namespace rtrs::library {

/// How often this process and those that it comes from have forked, on the child's side.
extern std::atomic<unsigned> forks;

/// Threads: any.
class Birthplace {
 public:
  /// True in a child of the process that has made this.
  bool left() const { return forks_ != forks.load(std::memory_order_relaxed); }

 private:
  unsigned forks_ = forks.load(std::memory_order_relaxed);
};

}  // namespace rtrs::library
