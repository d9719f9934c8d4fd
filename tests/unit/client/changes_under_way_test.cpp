// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/changes_under_way.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

namespace rnbd::changes_under_way_test {
namespace {

const rtrs::Interrupt never{[](void*) { return false; }, nullptr};
const rtrs::Interrupt at_once{[](void*) { return true; }, nullptr};

TEST_CASE("changes under way: what overlaps another user's has to wait, by a byte or as a whole") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
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

TEST_CASE("changes under way: a user's own may overlap") {
  ChangesUnderWay changes;
  const int user = 0;
  CHECK(changes.try_enter(&user, 0, 4096));
  CHECK(changes.try_enter(&user, 0, 4096));
}

TEST_CASE("changes under way: who waits goes on when the last that overlaps has left") {
  ChangesUnderWay changes;
  const int first = 0;
  const int second = 0;
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

}  // namespace
}  // namespace rnbd::changes_under_way_test
