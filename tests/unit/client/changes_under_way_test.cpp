// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/changes_under_way.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace rnbd::changes_under_way_test {
namespace {

const rtrs::Interrupt never{[](void*) { return false; }, nullptr};
const rtrs::Interrupt at_once{[](void*) { return true; }, nullptr};

/// An interrupt that asks a function, which must outlive it.
template <class Ask>
rtrs::Interrupt asking(Ask& ask) {
  return {[](void* context) { return (*static_cast<Ask*>(context))(); }, &ask};
}

TEST_CASE("changes under way: what overlaps another user's has to wait, by a byte or as a whole") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  changes.add_user(&first);
  changes.add_user(&second);
  const auto place = changes.try_enter(&first, 4096, 8192);
  REQUIRE(place);
  CHECK_FALSE(changes.try_enter(&second, 8191, 8192));
  CHECK_FALSE(changes.try_enter(&second, 0, 4097));
  CHECK_FALSE(changes.try_enter(&second, 0, 1 << 20));
  CHECK_FALSE(changes.enter(&second, 4096, 8192, at_once));
  CHECK(changes.try_enter(&second, 0, 4096));
  CHECK(changes.try_enter(&second, 8192, 12288));
  changes.leave(*place);
  CHECK(changes.try_enter(&second, 4096, 8192));
}

TEST_CASE("changes under way: the place of a change and its length do not matter") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  changes.add_user(&first);
  changes.add_user(&second);
  struct Held {
    std::uint64_t begin, end;
    ChangesUnderWay::Place place;
  };
  std::vector<Held> held;
  std::mt19937_64 random{7};
  const auto some = [&](std::uint64_t most) { return random() % most; };
  for (int i = 0; i < 20000; ++i) {
    if (held.size() > 30) {
      const std::size_t at = some(held.size());
      changes.leave(held[at].place);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    // Near the ends of regions, far from them, and as long as all regions together.
    const std::uint64_t begin = (some(6) * 128 * 1024 * (some(2) == 0 ? 1 : 1024)) + some(3) * 4096;
    const std::uint64_t lengths[] = {4096, 131072, 135168, 1 << 20, std::uint64_t{1} << 34};
    const std::uint64_t end = begin + lengths[some(std::size(lengths) - (some(20) == 0 ? 0 : 1))];
    const bool overlaps = std::ranges::any_of(
        held, [&](const Held& other) { return begin < other.end && other.begin < end; });
    const auto other = changes.try_enter(&second, begin, end);
    REQUIRE(other.has_value() == !overlaps);
    if (other) changes.leave(*other);
    const auto own = changes.try_enter(&first, begin, end);
    REQUIRE(own);
    held.push_back({begin, end, *own});
  }
}

TEST_CASE("changes under way: a user's own may overlap, whether it is alone or not") {
  ChangesUnderWay changes;
  const int user = 0;
  const int other = 0;
  changes.add_user(&user);
  CHECK(changes.try_enter(&user, 0, 4096));
  CHECK(changes.try_enter(&user, 0, 4096));
  changes.add_user(&other);
  CHECK(changes.try_enter(&user, 0, 4096));
  CHECK(changes.try_enter(&user, 0, 4096));
}

TEST_CASE("changes under way: a second user waits for all that the first began alone") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  changes.add_user(&first);
  const auto one = changes.try_enter(&first, 0, 4096);
  const auto two = changes.try_enter(&first, 0, 4096);
  REQUIRE(one);
  REQUIRE(two);
  changes.add_user(&second);
  CHECK_FALSE(changes.try_enter(&second, 1 << 20, 1 << 21));
  const auto three = changes.try_enter(&first, 8192, 12288);
  REQUIRE(three);
  changes.leave(*one);
  CHECK_FALSE(changes.enter(&second, 1 << 20, 1 << 21, at_once));
  changes.leave(*two);
  CHECK(changes.try_enter(&second, 1 << 20, 1 << 21));
  CHECK_FALSE(changes.try_enter(&second, 8192, 12288));
  CHECK_FALSE(changes.try_enter(&first, 1 << 20, 1 << 21));
}

TEST_CASE(
    "changes under way: the user that stays is alone, and its writes count for the next one") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  const int third = 0;
  changes.add_user(&first);
  changes.add_user(&second);
  const auto listed = changes.try_enter(&second, 0, 4096);
  changes.remove_user(&first);
  const auto alone = changes.try_enter(&second, 8192, 12288);
  REQUIRE(listed);
  REQUIRE(alone);
  changes.add_user(&third);
  CHECK_FALSE(changes.try_enter(&third, 1 << 20, 1 << 21));
  changes.leave(*alone);
  CHECK_FALSE(changes.try_enter(&third, 0, 4096));
  CHECK(changes.try_enter(&third, 4096, 8192));
  changes.leave(*listed);
  CHECK(changes.try_enter(&third, 0, 4096));
}

TEST_CASE("changes under way: a waiting user goes on when the last one of the first has left") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  changes.add_user(&first);
  const auto one = changes.try_enter(&first, 0, 4096);
  changes.add_user(&second);
  std::thread waiter{[&] {
    const auto place = changes.enter(&second, 0, 8192, never);
    changes.leave(*place);
  }};
  changes.leave(*one);
  waiter.join();
  CHECK(changes.try_enter(&first, 0, 8192));
}

TEST_CASE("changes under way: users that come and go while others write never overlap") {
  ChangesUnderWay changes;
  std::atomic<const void*> inside{nullptr};
  std::atomic<bool> overlapped{false};
  const auto use = [&] {
    const int user = 0;
    for (int round = 0; round < 2000; ++round) {
      changes.add_user(&user);
      for (int write = 0; write < 3; ++write) {
        const auto place = changes.enter(&user, 0, 4096, never);
        const void* nobody = nullptr;
        if (!inside.compare_exchange_strong(nobody, &user)) overlapped = true;
        inside = nullptr;
        changes.leave(*place);
      }
      changes.remove_user(&user);
    }
  };
  std::thread one{use};
  std::thread two{use};
  one.join();
  two.join();
  CHECK_FALSE(overlapped);
}

TEST_CASE("changes under way: a waiting user goes on when the last that overlaps has left") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
  changes.add_user(&first);
  changes.add_user(&second);
  const auto one = changes.try_enter(&first, 0, 4096);
  const auto two = changes.try_enter(&first, 4096, 8192);
  std::atomic<bool> entered{false};
  std::thread waiter{[&] {
    const auto place = changes.enter(&second, 0, 8192, never);
    entered = true;
    changes.leave(*place);
  }};
  changes.leave(*one);
  CHECK_FALSE(entered);
  changes.leave(*two);
  waiter.join();
  CHECK(entered);
  CHECK(changes.try_enter(&first, 0, 8192));
}

TEST_CASE("changes under way: a patch keeps out all other changes of its block, and no others") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  {
    const PatchUnderWay patch{changes, 4096, 8192, never};
    CHECK(patch.entered());
    CHECK_FALSE(changes.try_enter(&user, 0, 4097));
    CHECK_FALSE(changes.enter(&user, 4096, 8192, at_once));
    CHECK_FALSE(PatchUnderWay(changes, 4096, 8192, at_once).entered());
    const auto elsewhere = changes.try_enter(&user, 8192, 12288);
    REQUIRE(elsewhere);
    CHECK(PatchUnderWay(changes, 0, 4096, at_once).entered());
    changes.leave(*elsewhere);
  }
  CHECK(changes.try_enter(&user, 4096, 8192));
}

TEST_CASE("changes under way: a patch waits for its user's changes of the block") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  const PatchUnderWay elsewhere{changes, 0, 4096, never};
  const auto listed = changes.try_enter(&user, 0, 12288);
  CHECK_FALSE(listed);
  const auto same_block = changes.try_enter(&user, 8192, 12288);
  REQUIRE(same_block);
  CHECK_FALSE(PatchUnderWay(changes, 8192, 12288, at_once).entered());
  changes.leave(*same_block);
  CHECK(PatchUnderWay(changes, 8192, 12288, at_once).entered());
}

TEST_CASE("changes under way: a patch that gave up keeps nobody out") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  const auto alone = changes.try_enter(&user, 0, 4096);
  REQUIRE(alone);
  CHECK_FALSE(PatchUnderWay(changes, 0, 4096, at_once).entered());
  changes.leave(*alone);
  // The patch is no user any more: the next write is not listed, so another user's waits for it
  // anywhere.
  const auto next = changes.try_enter(&user, 8192, 12288);
  REQUIRE(next);
  const int other = 0;
  changes.add_user(&other);
  CHECK_FALSE(changes.try_enter(&other, 1 << 20, 1 << 21));
  changes.leave(*next);
  CHECK(changes.try_enter(&other, 0, 4096));
}

TEST_CASE("changes under way: a patch enters although writes of its block never end") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  const PatchUnderWay elsewhere{changes, 4096, 8192, never};
  auto inside = changes.try_enter(&user, 0, 4096);
  int rounds = 0;
  // The patch waits when it asks this. Each write begins before the last one ends.
  auto write_on = [&] {
    const auto next = changes.try_enter(&user, 0, 4096);
    if (inside) changes.leave(*inside);
    inside = next;
    return ++rounds == 3;
  };
  const PatchUnderWay patch{changes, 0, 4096, asking(write_on)};
  CHECK(patch.entered());
  CHECK_FALSE(inside);
}

TEST_CASE("changes under way: a write enters although patches of its block never end") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  std::optional<PatchUnderWay> oldest;
  oldest.emplace(changes, 0, 4096, never);
  std::atomic<bool> newest_waits{false};
  std::atomic<bool> newest_entered{false};
  auto in_newest = [&] {
    newest_waits = true;
    return false;
  };
  // The write waits when the newest patch comes, and both do when the oldest patch ends.
  std::thread newest;
  auto in_write = [&] {
    if (newest_waits) oldest.reset();
    if (newest.joinable()) return false;
    newest = std::thread{[&] {
      const PatchUnderWay patch{changes, 0, 4096, asking(in_newest)};
      newest_entered = patch.entered();
    }};
    return false;
  };
  const auto place = changes.enter(&user, 0, 4096, asking(in_write));
  REQUIRE(place);
  CHECK_FALSE(newest_entered);
  changes.leave(*place);
  newest.join();
  CHECK(newest_entered);
}

TEST_CASE("changes under way: a patch is alone in its block at all times") {
  ChangesUnderWay changes;
  const int user = 0;
  changes.add_user(&user);
  std::atomic<int> writers{0};
  std::atomic<int> patches{0};
  std::atomic<int> violations{0};
  int unprotected = 0;  // guarded by the patches alone
  const auto write = [&] {
    for (int i = 0; i < 2000; ++i) {
      const auto place = changes.enter(&user, 0, 8192, never);
      ++writers;
      if (patches != 0) ++violations;
      --writers;
      changes.leave(*place);
    }
  };
  const auto patch = [&] {
    for (int i = 0; i < 500; ++i) {
      const PatchUnderWay alone{changes, 4096, 8192, never};
      if (++patches != 1 || writers != 0) ++violations;
      ++unprotected;
      --patches;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(write);
  for (int i = 0; i < 3; ++i) threads.emplace_back(patch);
  for (auto& thread : threads) thread.join();
  CHECK(violations == 0);
  CHECK(unprotected == 1500);
}

}  // namespace
}  // namespace rnbd::changes_under_way_test
