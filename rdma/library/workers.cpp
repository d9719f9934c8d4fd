// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/workers.hpp"

#include <pthread.h>

#include <utility>

namespace rtrs::library {

Workers::Workers(unsigned count, Handler handler) : handler_{std::move(handler)} {
  for (unsigned i = 0; i < count; ++i) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "rtrs-worker");
      work();
    });
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  added_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(rtrs_request& call) {
  {
    const std::lock_guard lock{mutex_};
    waiting_.push_back(&call);
  }
  added_.notify_one();
}

void Workers::work() {
  std::unique_lock lock{mutex_};
  while (true) {
    added_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    rtrs_request& call = *waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    handler_(call);
    lock.lock();
  }
}

}  // namespace rtrs::library
