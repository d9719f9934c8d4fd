// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>

#include "bridge/client/device_table.hpp"
#include "bridge/client/reopen.hpp"

namespace rnbd::test::open_orders_test {
namespace {

constexpr std::uint32_t kOwn = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce;

rtrs::SessionLimits limits(std::uint32_t features) { return {.features = features}; }

TEST_CASE("orders: nothing is certain behind an attempt that was cut short, until one succeeds") {
  OpenOrders orders;
  const auto fate_of_left = [&] {
    return OpenOrders::renewal(/*is_open=*/true, false, /*in_use=*/false, orders.certain(),
                               orders.era().limits);
  };
  CHECK(orders.enter(limits(kOwn)));
  orders.begin_recovery(limits(kOwn), /*forgets=*/true);
  CHECK(orders.certain());
  CHECK_FALSE(orders.enter(limits(kOwn)));
  SUBCASE("it failed") { orders.end_recovery(/*success=*/false); }
  SUBCASE("its path was lost, and nobody said so") {}
  orders.begin_recovery(limits(kOwn), true);
  CHECK_FALSE(orders.certain());
  CHECK(fate_of_left() == Renewal::open_to_close);
  orders.end_recovery(true);
  orders.begin_recovery(limits(kOwn), true);
  CHECK(orders.certain());
  CHECK(fate_of_left() == Renewal::forget);
}

TEST_CASE("orders: an attempt at a server that may not forget counts for the next one, too") {
  OpenOrders orders;
  orders.begin_recovery(limits(0), /*forgets=*/false);
  CHECK_FALSE(orders.certain());
  orders.end_recovery(false);
  orders.begin_recovery(limits(kOwn), true);
  CHECK_FALSE(orders.certain());
}

TEST_CASE("orders: the OPENs of an attempt count as unanswered until it is over") {
  OpenOrders orders;
  orders.begin_recovery(limits(kOwn), true);
  const wire::OpenOrder first = orders.begin_again();
  CHECK(orders.begin_again().settled == first.number);
  SUBCASE("it ended") { orders.end_recovery(true); }
  SUBCASE("another one began") { orders.begin_recovery(limits(kOwn), true); }
  const wire::OpenOrder next = orders.begin();
  CHECK(next.settled == next.number);
}

TEST_CASE("orders: toward a server that knows no numbers OPENs have none") {
  OpenOrders orders;
  orders.begin_recovery(limits(0), false);
  CHECK(orders.begin_again().number == 0);
}

TEST_CASE("orders: the answer to a CLOSE of a past session is believed with numbers only") {
  OpenOrders orders;
  orders.enter(limits(kOwn));
  const std::uint64_t era = orders.era().number;
  CHECK(orders.believed(era));
  SUBCASE("numbers") {
    orders.begin_recovery(limits(kOwn), true);
    CHECK(orders.believed(era));
  }
  SUBCASE("none") {
    orders.begin_recovery(limits(0), false);
    CHECK_FALSE(orders.believed(era));
  }
  CHECK(orders.is_past(era));
}

TEST_CASE("orders: a refused device is lost when its session goes on without it, and not before") {
  ReopenedDevice device;
  CHECK_FALSE(device.is_lost(/*in_use=*/true, /*goes_on=*/true));
  device.loss = "another disk";
  CHECK(device.is_lost(true, false));
  CHECK_FALSE(device.is_lost(/*in_use=*/false, true));
  device.refusal = EPERM;
  CHECK_FALSE(device.is_lost(true, /*goes_on=*/false));
  CHECK(device.is_lost(true, true));
}

}  // namespace
}  // namespace rnbd::test::open_orders_test
