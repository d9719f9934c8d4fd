// SPDX-License-Identifier: BSD-3-Clause
// Whether connections live, and how long requests wait for one that carries them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::client_life_test {
namespace {

TEST_CASE("a connection that owes an answer is asked for a sign of life, and dead without one") {
  Bench bench;
  bench.attach(0);
  const auto heartbeats = [&] {
    return std::ranges::count_if(bench.queue_pairs[0].posts, [](const FakeQueuePair::Post& post) {
      return post.immediate == wire::kHeartbeat;
    });
  };
  for (int i = 0; i < 10; ++i) CHECK(bench.lane.probe(0, 4));
  CHECK(heartbeats() == 0);  // nobody waits
  TestRequest slow;
  bench.lane.submit(slow);
  SUBCASE("silence") {
    for (int i = 0; i < 5; ++i) CHECK(bench.lane.probe(0, 4));
    CHECK_FALSE(bench.lane.probe(0, 4));
    CHECK(heartbeats() == 1);
  }
  SUBCASE("only the storage is slow") {
    for (int i = 0; i < 20; ++i) {
      CHECK(bench.lane.probe(0, 4));
      CHECK(heartbeats() == i / 2 + 1);
      if (i % 2 != 0) continue;
      CHECK(bench.lane.connection(0).on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
    }
  }
  SUBCASE("the next life begins anew") {
    for (int i = 0; i < 5; ++i) CHECK(bench.lane.probe(0, 4));
    bench.lane.detach(0);
    bench.attach(0);
    for (int i = 0; i < 5; ++i) CHECK(bench.lane.probe(0, 4));
  }
  SUBCASE("Linux is not asked") {
    Bench linux_peer{/*once=*/false};
    linux_peer.attach(0);
    TestRequest other;
    linux_peer.lane.submit(other);
    for (int i = 0; i < 20; ++i) CHECK(linux_peer.lane.probe(0, 4));
    CHECK(linux_peer.posts(0) == 1);
  }
}

TEST_CASE("a connection that says something is mute no more, and what it carries waits on") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  Bench bench;
  bench.attach(0);
  TestRequest slow;
  bench.lane.submit(slow);
  for (int i = 0; i < 2; ++i) CHECK(bench.lane.probe(0, 4, kStart));
  ClientLane::Connection& connection = bench.lane.connection(0);
  REQUIRE(connection.mute());
  REQUIRE(bench.lane.overdue(kStart));
  CHECK(connection.on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
  CHECK_FALSE(connection.mute());
  CHECK_FALSE(bench.lane.overdue(kStart + std::chrono::hours{1}));
  bench.lane.note_answer(0, kStart);
  CHECK_FALSE(connection.mute());
}

TEST_CASE("what paths carry in vain, though others live on them, does not wait for ever") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  const auto after = [](int seconds) { return kStart + std::chrono::seconds{seconds}; };
  Bench bench;
  bench.attach(0);
  TestRequest large;
  bench.lane.submit(large);
  const auto fall_silent = [&](Instant now) {
    for (int i = 0; i < 3; ++i) CHECK(bench.lane.probe(0, 4, now));
    CHECK(bench.lane.connection(0).mute());
  };
  const auto is_heard = [&](Instant now) {
    CHECK(bench.lane.connection(0).on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
    CHECK(bench.lane.probe(0, 4, now));
  };
  CHECK(bench.lane.probe(0, 4, kStart));
  CHECK_FALSE(bench.lane.overdue(after(1000)));  // the server may be at it
  CHECK(bench.lane.probe(0, 4, kStart));
  CHECK(bench.lane.connection(0).mute());
  CHECK_FALSE(bench.lane.overdue(kStart - std::chrono::nanoseconds{1}));
  CHECK(bench.lane.overdue(kStart));
  SUBCASE("but for a server that is slow") {
    for (int i = 0; i < 3; ++i) is_heard(after(1));
    CHECK_FALSE(bench.lane.overdue(after(1000)));
    fall_silent(after(2));
    CHECK_FALSE(bench.lane.overdue(after(1)));
    CHECK(bench.lane.overdue(after(2)));
  }
  bench.lane.detach(0, after(1));
  SUBCASE("fails in flight, and its permit is free when its end is known") {
    bench.attach(0);
    CHECK_FALSE(bench.lane.overdue(after(1000)));  // the server may be at it
    SUBCASE("") {}
    SUBCASE("though it reaches its server") {
      CHECK(bench.lane.probe(0, 4, after(2)));
      for (int i = 0; i < 2; ++i) is_heard(after(2));
    }
    SUBCASE("though what came before it is answered") {
      CHECK(bench.lane.connection(0).on_write_with_immediate(wire::kHeartbeat, 0) == nullptr);
      CHECK(bench.lane.probe(0, 4, after(2)));
    }
    fall_silent(after(3));
    CHECK_FALSE(bench.lane.overdue(kStart - std::chrono::nanoseconds{1}));
    REQUIRE(bench.lane.overdue(kStart));
    bench.lane.fail_overdue(kStart, ESHUTDOWN);
    CHECK(large.calls == 1);
    CHECK(large.error == ESHUTDOWN);
    CHECK(bench.lane.permits().in_use() == 1);
    bench.lane.detach(0, after(40));
    bench.attach(0);
    CHECK(bench.trailer(0).flags == wire::kSettle);
    CHECK(bench.reply(0, large.slot) == nullptr);
    CHECK(bench.lane.permits().in_use() == 0);
  }
  SUBCASE("and neither does what waits for its permit") {
    TestRequest others[2];
    for (TestRequest& other : others) bench.lane.submit(other);
    bench.attach(0);
    fall_silent(after(2));
    CHECK(others[1].state == Request::State::waiting);
    bench.lane.fail_overdue(after(2) - std::chrono::nanoseconds{1}, EIO);
    CHECK(large.calls == 1);
    CHECK(others[1].calls == 0);
    bench.lane.fail_overdue(after(2), EIO);
    for (const TestRequest& other : others) CHECK(other.calls == 1);
  }
  SUBCASE("fails between two paths") {
    CHECK_FALSE(bench.lane.overdue(after(2) - std::chrono::nanoseconds{1}));
    CHECK(bench.lane.overdue(after(2)));
    bench.lane.fail_overdue(after(2), EIO);
    CHECK(large.calls == 1);
  }
  SUBCASE("waits anew after a path that gave a sign of life") {
    bench.attach(0);
    CHECK(bench.lane.probe(0, 4, after(2)));
    for (int i = 3; i < 6; ++i) is_heard(after(i));
    SUBCASE("and was silent then") { fall_silent(after(10)); }
    SUBCASE("until it was lost") {}
    bench.lane.detach(0, after(10));
    CHECK_FALSE(bench.lane.overdue(after(12) - std::chrono::nanoseconds{1}));
    CHECK(bench.lane.overdue(after(12)));
  }
  SUBCASE("nor does its answer, whenever a server that is slow sends one") {
    constexpr int kArrivals = 8;
    for (int life = 1; life <= kArrivals + 1; ++life) {
      bench.attach(0);
      CHECK(bench.lane.probe(0, 4, after(10 * life)));
      for (int i = 0; i < 3; ++i) is_heard(after(10 * life));
      fall_silent(after(10 * life + 1));
      for (int i = 0; life == 2 && i < 20; ++i) {  // a path may stand still as often as it likes
        is_heard(after(10 * life + 1));
        fall_silent(after(10 * life + 1));
      }
      const bool counts = bench.lane.overdue(after(10 * life - 1));
      CHECK(counts == (life > kArrivals));
      bench.lane.detach(0, after(10 * life + 2));
    }
  }
  SUBCASE("nor is lost for ever with paths that are cut before they fall silent") {
    for (int life = 2; life <= 8; ++life) {
      bench.attach(0);
      CHECK_FALSE(bench.lane.overdue(after(1000)));
      bench.lane.detach(0, after(life));
    }
    bench.attach(0);
    CHECK_FALSE(bench.lane.overdue(kStart - std::chrono::nanoseconds{1}));
    CHECK(bench.lane.overdue(kStart));
    CHECK(bench.lane.fail_overdue(kStart, EIO) == 0);  // that path may be a good one
    CHECK(large.calls == 1);
  }
  SUBCASE("has waited since the first of several losses") {
    for (int life = 1; life < 4; ++life) {
      bench.attach(0);
      if (life % 2 == 0) fall_silent(after(10 * life - 1));
      bench.lane.detach(0, after(10 * life));
    }
    CHECK(bench.lane.overdue(after(2)));
  }
  bench.lane.shut_down(EIO);
}

TEST_CASE("only what waits for permits waits for a path with those that hold them") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  const auto given_up = std::make_shared<Unresolved>();
  Bench bench;
  bench.attach(0);
  TestRequest left;
  left.scope = &given_up;
  bench.lane.submit(left);
  bench.lane.cancel(left);  // its end is awaited
  TestRequest change;
  change.scope = &given_up;
  change.waits_for_scope = true;
  bench.lane.submit(change);
  TestRequest read{/*read=*/true};
  bench.lane.submit(read);
  REQUIRE(change.state == Request::State::waiting);
  for (int i = 0; i < 3; ++i) CHECK(bench.lane.probe(0, 4, kStart));
  bench.lane.fail_overdue(kStart + std::chrono::hours{1}, EIO);
  CHECK(read.calls == 1);
  CHECK(change.calls == 0);
  bench.lane.shut_down(EIO);
}

TEST_CASE("what waits for a permit waits on while the requests that have it are carried") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  static constexpr Instant kLate = kStart + std::chrono::hours{1};
  Bench bench;
  bench.attach(0);
  TestRequest requests[3];
  TestRequest more[2];
  for (TestRequest& request : requests) bench.lane.submit(request);
  for (int i = 0; i < 3; ++i) CHECK(bench.lane.probe(0, 4, kStart));
  REQUIRE(bench.lane.overdue(kLate));
  bench.lane.detach(0, kStart);
  bench.attach(0);
  CHECK(bench.lane.probe(0, 4, kStart));
  for (int i = 0; i < 10; ++i) {  // a message may take long, and its bytes move
    bench.queue_pairs[0].bytes_carried += 1024;
    CHECK(bench.lane.probe(0, 4, kLate));
    CHECK_FALSE(bench.lane.overdue(kLate));
  }
  constexpr Instant kBefore = kLate - std::chrono::nanoseconds{1};
  SUBCASE("and that time does not count") {
    for (int i = 0; i < 2; ++i) CHECK(bench.lane.probe(0, 4, kLate));
    bench.lane.fail_overdue(kBefore, EIO);
    CHECK(requests[2].calls == 0);
    CHECK(bench.lane.overdue(kLate));
  }
  SUBCASE("nor for one that has got a permit meanwhile") {
    for (TestRequest& request : more) bench.lane.submit(request);
    for (std::uint32_t i = 0; i < 2; ++i) CHECK(bench.reply(0, i) == nullptr);
    REQUIRE(requests[2].state == Request::State::in_flight);
    REQUIRE(more[1].state == Request::State::waiting);
    CHECK(bench.lane.probe(0, 4, kLate));
    SUBCASE("by silence") {
      for (int i = 0; i < 2; ++i) CHECK(bench.lane.probe(0, 4, kLate));
      CHECK_FALSE(bench.lane.overdue(kBefore));
      CHECK(bench.lane.overdue(kLate));
      bench.lane.fail_overdue(kLate, EIO);
      CHECK(more[1].calls == 1);
    }
    SUBCASE("by a cut") {
      constexpr Duration kBackSoon = std::chrono::seconds{2};
      bench.lane.detach(0, kLate);
      CHECK_FALSE(bench.lane.overdue(kBefore + kBackSoon));
      CHECK(bench.lane.overdue(kLate + kBackSoon));
    }
  }
  bench.lane.shut_down(EIO);
}

TEST_CASE("a wait for a path is none as long as this process stands still") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  constexpr Duration kPause = std::chrono::minutes{1};
  Bench bench;
  bench.attach(0);
  TestRequest request;
  bench.lane.submit(request);
  bench.lane.note_pause(kPause);  // nothing waits yet
  for (int i = 0; i < 3; ++i) CHECK(bench.lane.probe(0, 4, kStart));
  bench.lane.note_pause(kPause);
  CHECK_FALSE(bench.lane.overdue(kStart + kPause - std::chrono::nanoseconds{1}));
  CHECK(bench.lane.overdue(kStart + kPause));
  bench.lane.shut_down(EIO);
}

TEST_CASE("signs of life from before something came to a path say nothing of it") {
  static constexpr Instant kStart{std::chrono::seconds{100}};
  Bench bench;
  bench.attach(0);
  bench.attach(1);
  bench.lane.use(0b01, PathPolicy::round_robin);
  TestRequest large;
  bench.lane.submit(large);
  bench.lane.use(0b10, PathPolicy::round_robin);
  TestRequest slow{/*read=*/true};
  bench.lane.submit(slow);
  REQUIRE(bench.posts(1) == 1);
  const auto sign = [&] {
    CHECK(bench.lane.connection(1).on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
  };
  // It asks after an interval of silence, and is answered.
  for (int i = 0; i < 4; ++i) {
    CHECK(bench.lane.probe(1, 4, kStart));
    sign();
    CHECK(bench.lane.probe(1, 4, kStart));
  }
  CHECK(bench.lane.probe(1, 4, kStart));  // one question is under way
  bench.lane.detach(0, kStart);           // large goes over the other path now, behind that
  // Of three answers two are to questions behind it, and three are needed.
  for (int i = 0; i < 3; ++i) {
    sign();
    CHECK(bench.lane.probe(1, 4, kStart));
    CHECK_FALSE(bench.lane.overdue(kStart));
  }
  constexpr Instant kLater = kStart + std::chrono::seconds{1};
  for (int i = 0; i < 3; ++i) CHECK(bench.lane.probe(1, 4, kLater));
  CHECK(bench.lane.overdue(kStart));
  bench.lane.shut_down(EIO);
}

}  // namespace
}  // namespace rtrs::client_life_test
