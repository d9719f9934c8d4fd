// SPDX-License-Identifier: BSD-3-Clause
// Ends registrations where nobody waits: a device may take long for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rtrs::verbs {

class Region;

/// A thread that exists from the first add() on.
///
/// Threads: add() and finish() one at a time.
class Retirement {
 public:
  struct Job {
    std::vector<std::shared_ptr<Region>> regions;  ///< nobody else has them
    std::function<void()> dead;                    ///< called on the thread, when they are gone
  };

  Retirement() = default;
  ~Retirement();
  Retirement(const Retirement&) = delete;
  Retirement& operator=(const Retirement&) = delete;

  void add(Job job);
  /// Waits for all jobs; there must be no more.
  void finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool finishing_ = false;
  std::thread thread_;
};

}  // namespace rtrs::verbs
