// SPDX-License-Identifier: BSD-3-Clause
// Threads for calls that may have to wait; an event loop must not make these itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace rnbd::nbd {

/// Makes every call at once, so one that waits for a server does not hold up the others. Threads
/// start when they are needed, and all but one end when they are idle. Calls beyond `most_threads`,
/// or beyond the system's limit, wait for others to end.
///
/// Threads: post() from any.
class CallPool {
 public:
  /// Starts the thread that stays. Throws std::system_error.
  explicit CallPool(std::size_t most_threads);
  /// Waits for the calls that were posted.
  ~CallPool();
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  /// Runs `call`, then `then`, which must not wait. If `then` posts the next call, that needs no
  /// further thread.
  void post(std::function<void()> call, std::function<void()> then = {});
  /// Waits until nothing is left of the calls that were posted. False: not until then.
  bool await_idle(std::chrono::steady_clock::time_point until);

 private:
  struct Call {
    std::function<void()> call;
    std::function<void()> then;
  };

  void run();

  const std::size_t most_;  ///< threads
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::deque<Call> calls_;   ///< not begun yet; guarded by mutex_
  std::size_t threads_ = 0;  ///< guarded by mutex_
  std::size_t busy_ = 0;     ///< of them, with a call; guarded by mutex_
  bool ending_ = false;      ///< guarded by mutex_
};

}  // namespace rnbd::nbd
