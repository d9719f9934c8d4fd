// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/alarm.hpp"

#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <optional>

namespace rtrs::alarm_test {
namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;

TEST_CASE("an alarm that has gone off, but was not heard yet, is still set anew, or off") {
  asio::io_context io;
  std::optional<Alarm> alarm{io};
  int old = 0;
  int newer = 0;
  bool expects_newer = false;
  std::function<void()> act;
  SUBCASE("set anew") {
    expects_newer = true;
    act = [&] { alarm->set(1ms, [&] { ++newer; }); };
  }
  SUBCASE("cancelled") {
    act = [&] { alarm->cancel(); };
  }
  SUBCASE("destroyed") {
    act = [&] { alarm.reset(); };
  }
  const auto expiry = std::chrono::steady_clock::now() + 20ms;
  alarm->set(20ms, [&] { ++old; });
  // The first keeps the loop until the alarm has expired; what it posts comes before the alarm's
  // handler, but after the loop has looked at its timers.
  asio::post(io, [&] {
    while (std::chrono::steady_clock::now() < expiry + 1ms) {
    }
    asio::post(io, [&] { act(); });
  });
  io.run();
  CHECK(old == 0);
  CHECK(newer == (expects_newer ? 1 : 0));
}

TEST_CASE("an alarm goes off once for each setting") {
  asio::io_context io;
  Alarm alarm{io};
  int calls = 0;
  alarm.set(1ms, [&] {
    ++calls;
    if (calls < 3) alarm.set(1ms, [&] { ++calls; });
  });
  io.run();
  CHECK(calls == 2);
}

}  // namespace
}  // namespace rtrs::alarm_test
