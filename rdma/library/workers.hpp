// SPDX-License-Identifier: BSD-3-Clause
// Threads that run handlers which may block.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma/library/incoming_call.hpp"

namespace rtrs::library {

/// Threads: run() any; the rest the owner's.
class Workers {
 public:
  using Handler = std::function<void(rtrs_request&)>;

  /// Throws when the system has no threads left.
  Workers(unsigned count, Handler handler);
  /// Waits for the handlers that run; calls not begun are forgotten.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void run(rtrs_request& call);

 private:
  void work();

  Handler handler_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<rtrs_request*> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rtrs::library
