// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/heartbeat.hpp"

#include <doctest/doctest.h>

#include <optional>

namespace rtrs::heartbeat_test {
namespace {

using namespace std::chrono_literals;
using Verdict = Heartbeat::Verdict;

/// When a peer that fell silent at time 0 is declared dead.
std::optional<Duration> time_of_death(Duration interval, unsigned misses, Duration last_traffic) {
  Heartbeat heartbeat{interval, misses};
  heartbeat.start(Instant{});
  for (Duration now{}; now < 1h; now += interval / 10) {
    if (now <= last_traffic) heartbeat.on_traffic();
    if (heartbeat.on_tick(Instant{now}) == Verdict::dead) return now;
  }
  return std::nullopt;
}

TEST_CASE("a silent peer is found dead within the limits of the defaults") {
  const auto death = time_of_death(500ms, 4, 0ms);
  REQUIRE(death.has_value());
  CHECK(*death >= 2500ms);
  CHECK(*death <= 3500ms);
}

TEST_CASE("Linux's timers find a silent peer after 30 to 36 seconds") {
  const auto death = time_of_death(5s, 5, 0ms);
  REQUIRE(death.has_value());
  CHECK(*death >= 30s);
  CHECK(*death <= 36s);
}

TEST_CASE("the time counts from the last traffic, whatever it was") {
  const auto death = time_of_death(500ms, 4, 10s);
  REQUIRE(death.has_value());
  CHECK(*death >= 12500ms);
  CHECK(*death <= 13500ms);
}

TEST_CASE("only one unanswered heartbeat is under way at a time") {
  Heartbeat heartbeat{1s, 5};
  heartbeat.start(Instant{});
  int sent = 0;
  for (int second = 1; second <= 6; ++second) {
    sent += heartbeat.on_tick(Instant{std::chrono::seconds{second}}) == Verdict::send;
  }
  CHECK(sent == 1);
  heartbeat.on_traffic();
  CHECK(heartbeat.on_tick(Instant{7s}) == Verdict::send);
}

TEST_CASE("an end that hears its peer asks nothing, and after an interval of silence once") {
  Heartbeat heartbeat{1s, 4, Heartbeat::Asks::in_silence};
  heartbeat.start(Instant{});
  Instant now{};
  for (int i = 0; i < 10; ++i) {
    heartbeat.on_traffic();
    CHECK(heartbeat.on_tick(now += 1s) == Verdict::nothing);
  }
  CHECK(heartbeat.on_tick(now += 1s) == Verdict::send);
  for (int i = 0; i < 3; ++i) CHECK(heartbeat.on_tick(now += 1s) == Verdict::nothing);
  CHECK(heartbeat.on_tick(now += 1s) == Verdict::dead);
}

TEST_CASE("an end without patience for an answer asks at each interval") {
  Heartbeat heartbeat{1s, 0, Heartbeat::Asks::in_silence};
  heartbeat.start(Instant{});
  CHECK(heartbeat.on_tick(Instant{1s}) == Verdict::send);
  CHECK(heartbeat.on_tick(Instant{2s}) == Verdict::dead);
}

TEST_CASE("nothing happens before the deadline") {
  Heartbeat heartbeat{1s, 0};
  heartbeat.start(Instant{5s});
  CHECK(heartbeat.next_deadline() == Instant{6s});
  CHECK(heartbeat.on_tick(Instant{5999ms}) == Verdict::nothing);
  CHECK(heartbeat.on_tick(Instant{6s}) == Verdict::send);
}

TEST_CASE("a process that slept for a long time does not blame its peer for it") {
  Heartbeat heartbeat{1s, 4};
  heartbeat.start(Instant{});
  CHECK(heartbeat.on_tick(Instant{1s}) == Verdict::send);
  CHECK(heartbeat.on_tick(Instant{600s}) == Verdict::nothing);
  heartbeat.on_traffic();
  CHECK(heartbeat.on_tick(Instant{601s}) == Verdict::send);
}

TEST_CASE(
    "a path that looks dead again and again gets more time each time, until that is long ago") {
  ProbePatience patience;
  Instant now{std::chrono::hours{1}};
  patience.on_alive(now);
  CHECK(patience.misses_max(4) == 4);
  for (const unsigned misses : {8U, 16U, 32U, 32U}) {
    patience.on_dead(now += std::chrono::seconds{10});
    CHECK(patience.misses_max(4) == misses);
  }
  patience.on_alive(now + std::chrono::seconds{119});
  CHECK(patience.misses_max(4) == 32);
  patience.on_alive(now + std::chrono::seconds{120});
  CHECK(patience.misses_max(4) == 4);
}

}  // namespace
}  // namespace rtrs::heartbeat_test
