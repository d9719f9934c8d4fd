// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/mailbox.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <thread>
#include <vector>

namespace rtrs::mailbox_test {
namespace {

bool readable(int descriptor) {
  pollfd entry{descriptor, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST_CASE("mailbox: its descriptor is readable until the letters are taken") {
  Mailbox<int> box;
  std::vector<int> letters;
  CHECK_FALSE(readable(box.descriptor()));
  box.post(1);
  box.post_several([](std::vector<int>& others) { others.insert(others.end(), {2, 3}); });
  CHECK(readable(box.descriptor()));
  box.take(letters);
  CHECK(letters == std::vector{1, 2, 3});
  CHECK_FALSE(readable(box.descriptor()));
  letters.clear();
  box.take(letters);
  CHECK(letters.empty());
  box.post(4);
  CHECK(readable(box.descriptor()));
}

TEST_CASE("mailbox: the letters of many threads all arrive, those of each in their order") {
  constexpr int kThreads = 4;
  constexpr int kLetters = 2000;
  Mailbox<std::pair<int, int>> box;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&box, thread] {
      for (int i = 0; i < kLetters; ++i) box.post({thread, i});
    });
  }
  std::vector<int> next(kThreads);
  std::vector<std::pair<int, int>> letters;
  for (int missing = kThreads * kLetters; missing > 0;) {
    pollfd entry{box.descriptor(), POLLIN, 0};
    REQUIRE(::poll(&entry, 1, -1) == 1);
    box.take(letters);
    for (const auto& [thread, number] : letters) {
      REQUIRE(next[static_cast<std::size_t>(thread)]++ == number);
      --missing;
    }
    letters.clear();
  }
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(readable(box.descriptor()));
}

TEST_CASE("wake-up: several calls are one, and a cleared one can be waited for again") {
  const WakeUp wake;
  CHECK_FALSE(readable(wake.descriptor()));
  wake.wake();
  wake.wake();
  CHECK(readable(wake.descriptor()));
  wake.clear();
  CHECK_FALSE(readable(wake.descriptor()));
  wake.clear();  // does not wait
}

}  // namespace
}  // namespace rtrs::mailbox_test
