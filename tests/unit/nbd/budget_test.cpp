// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/budget.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <thread>
#include <vector>

namespace budget_test {

using rnbd::nbd::Budget;
using rnbd::nbd::Share;

TEST_CASE("budget: what is a share's own does not count") {
  Budget budget{100};
  Share share{budget, 10};
  share.take(4);
  share.take(6);
  CHECK(budget.used() == 0);
  share.take(5);
  CHECK(budget.used() == 5);
  share.give_back(8);
  CHECK(share.has() == 7);
  CHECK(budget.used() == 0);
}

TEST_CASE("budget: who has its own waits while the others have spent it, and not longer") {
  Budget budget{100};
  std::optional<Share> greedy;
  greedy.emplace(budget, 10);
  while (greedy->may_grow()) greedy->take(30);
  CHECK(greedy->has() == 120);
  Share modest{budget, 10};
  CHECK(modest.may_grow());
  modest.take(9);
  CHECK(modest.may_grow());
  modest.take(50);  // the last one may be larger than what was left
  CHECK_FALSE(modest.may_grow());
  modest.give_back(50);
  CHECK(modest.may_grow());
  modest.take(1);
  CHECK_FALSE(modest.may_grow());
  greedy.reset();
  CHECK(modest.may_grow());
  CHECK(budget.used() == 0);
}

TEST_CASE("budget: threads that use it at the same time leave nothing behind") {
  constexpr std::size_t kThreads = 4;
  Budget budget{50};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&budget] {
      Share share{budget, 3};
      for (int i = 0; i < 10'000; ++i) {
        while (share.may_grow() && share.has() < 40) share.take(2);
        CHECK(budget.used() < 50 + 2 * kThreads);
        share.give_back(share.has());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(budget.used() == 0);
}

}  // namespace budget_test
