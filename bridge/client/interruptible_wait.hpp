// SPDX-License-Identifier: BSD-3-Clause
// A wait for a condition that ends early when the caller is interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "rdma/client.hpp"

namespace rnbd {

/// Waits until `done()` is true. It checks the interrupt about four times a second, without the
/// lock.
///
/// Errors: returns false when interrupted before that.
template <class Done>
[[nodiscard]] bool interruptible_wait(std::condition_variable& changed,
                                      std::unique_lock<std::mutex>& lock,
                                      const rtrs::Interrupt& interrupt, Done done) {
  constexpr std::chrono::milliseconds kPeriod{250};
  auto next_ask = std::chrono::steady_clock::now() + kPeriod;
  while (!done()) {
    if (changed.wait_until(lock, next_ask) == std::cv_status::no_timeout) continue;
    if (done()) break;
    lock.unlock();
    bool leave = interrupt();
    lock.lock();
    if (leave && !done()) return false;
    next_ask = std::chrono::steady_clock::now() + kPeriod;
  }
  return true;
}

}  // namespace rnbd
