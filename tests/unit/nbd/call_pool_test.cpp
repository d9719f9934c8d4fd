// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/call_pool.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <set>
#include <thread>

namespace call_pool_test {

using rnbd::nbd::CallPool;

TEST_CASE("calls: a hundred that wait do not hold up the next one") {
  std::latch begun{100};
  std::latch released{1};
  CallPool pool{200};  // its end waits for the calls, which use the latches
  for (int i = 0; i < 100; ++i) {
    pool.post([&] {
      begun.count_down();
      released.wait();
    });
  }
  begun.wait();
  std::latch done{1};
  pool.post([&] { done.count_down(); });
  done.wait();
  released.count_down();
}

TEST_CASE("calls: whoever ends the pool waits for all of them, also for those they post") {
  std::atomic<int> made{0};
  {
    CallPool pool{100};
    for (int i = 0; i < 5000; ++i) {
      pool.post([&] {
        if (++made % 10 == 1) pool.post([&] { ++made; });
      });
    }
  }
  CHECK(made >= 5000);
  CHECK(made <= 10'000);
}

TEST_CASE("calls: not more threads than allowed, and what waits for one is made") {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<int> made{0};
  {
    std::latch begun{8};
    CallPool pool{8};
    for (int i = 0; i < 1000; ++i) {
      pool.post([&, i] {
        const int now = ++running;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        if (i < 8) begun.arrive_and_wait();
        --running;
        ++made;
      });
    }
  }
  CHECK(made == 1000);
  CHECK(most == 8);
}

TEST_CASE("calls: one after the other, each posted when the last one has ended, share a thread") {
  std::set<std::thread::id> threads;
  std::latch done{1};
  int left = 1000;
  CallPool pool{100};
  std::function<void()> next = [&] {
    if (left-- == 0) return done.count_down();
    pool.post([&] { threads.insert(std::this_thread::get_id()); }, next);
  };
  next();
  done.wait();
  CHECK(threads.size() == 1);
}

}  // namespace call_pool_test
