// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/call_pool.hpp"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace rnbd::nbd {
namespace {

/// A thread without work for so long ends, if it is not the last one.
constexpr std::chrono::seconds kPatience{10};

}  // namespace

CallPool::CallPool(std::size_t most_threads) : most_{most_threads} {
  const std::lock_guard lock{mutex_};
  std::thread{[this] { run(); }}.detach();
  ++threads_;
}

CallPool::~CallPool() {
  std::unique_lock lock{mutex_};
  ending_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0; });
}

void CallPool::post(std::function<void()> call, std::function<void()> then) {
  const std::lock_guard lock{mutex_};
  calls_.push_back({std::move(call), std::move(then)});
  if (calls_.size() <= threads_ - busy_ || threads_ >= most_) return changed_.notify_one();
  try {
    std::thread{[this] { run(); }}.detach();
    ++threads_;
  } catch (const std::exception&) {
    changed_.notify_one();  // a thread is idle, and takes the call in time
  }
}

bool CallPool::await_idle(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock{mutex_};
  return idle_.wait_until(lock, until, [this] { return busy_ == 0 && calls_.empty(); });
}

void CallPool::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    if (calls_.empty() && !ending_) {
      changed_.wait_for(lock, kPatience, [this] { return !calls_.empty() || ending_; });
    }
    if (calls_.empty()) {
      if (ending_ || threads_ > 1) break;
      continue;
    }
    auto [call, then] = std::move(calls_.front());
    calls_.pop_front();
    ++busy_;
    lock.unlock();
    call();
    call = nullptr;  // its destructor may wait, too
    lock.lock();
    --busy_;
    if (then) {
      lock.unlock();
      then();
      lock.lock();
    }
    if (busy_ == 0 && calls_.empty()) idle_.notify_all();
  }
  --threads_;
  changed_.notify_all();
}

}  // namespace rnbd::nbd
