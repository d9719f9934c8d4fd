// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/retirement.hpp"

#include <utility>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {

Retirement::~Retirement() { finish(); }

void Retirement::add(Job job) {
  const std::lock_guard lock{mutex_};
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread{[this] { run(); }};
  changed_.notify_one();
}

void Retirement::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    finishing_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void Retirement::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return finishing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.regions.clear();
    job.dead();
    job = {};
    lock.lock();
  }
}

}  // namespace rtrs::verbs
