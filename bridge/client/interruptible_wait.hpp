// SPDX-License-Identifier: BSD-3-Clause
// Waits that end early: when the caller is interrupted, or when a server that lives does not
// answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "rdma/client.hpp"

namespace rnbd {

/// The limit of a wait. It ends when its time is over, or when nobody wants the answer any more.
///
/// Threads: any; `wanted` is called by those that wait.
class AnswerLimit {
 public:
  /// `wanted`: empty: the answer is wanted all the time.
  explicit AnswerLimit(rtrs::Duration time, std::function<bool()> wanted = {})
      : until_{std::chrono::steady_clock::now() + time}, wanted_{std::move(wanted)} {}
  AnswerLimit(const AnswerLimit&) = delete;
  AnswerLimit& operator=(const AnswerLimit&) = delete;

  bool is_over() const {
    return std::chrono::steady_clock::now() >= until_ || (wanted_ && !wanted_());
  }
  /// For one wait, or several that share the time. It must outlive them.
  rtrs::Interrupt interrupt() {
    return {[](void* self) { return static_cast<const AnswerLimit*>(self)->is_over(); }, this};
  }

 private:
  const std::chrono::steady_clock::time_point until_;
  const std::function<bool()> wanted_;
};

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
