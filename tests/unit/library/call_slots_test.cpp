// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/call_slots.hpp"

#include <doctest/doctest.h>

#include <thread>

namespace rtrs::library::call_slots_test {
namespace {

TEST_CASE("a slot belongs to one call at a time, and each call has a newer generation") {
  CallSlots slots{2};
  const auto first = slots.try_take();
  const auto second = slots.try_take();
  REQUIRE((first && second));
  CHECK(first->slot != second->slot);
  CHECK_FALSE(slots.try_take());
  slots.give_back(first->slot);
  const auto third = slots.try_take();
  REQUIRE(third);
  CHECK(third->slot == first->slot);
  CHECK(third->generation == first->generation + 1);
  CHECK(third->number > second->number);
}

TEST_CASE("whoever waits for a slot gets one that comes back, or may give up") {
  CallSlots slots{1};
  const auto taken = slots.try_take();
  REQUIRE(taken);
  CHECK_FALSE(slots.take([] { return true; }));
  std::thread other{[&] { slots.give_back(taken->slot); }};
  CHECK(slots.take([] { return false; }));
  other.join();
}

}  // namespace
}  // namespace rtrs::library::call_slots_test
