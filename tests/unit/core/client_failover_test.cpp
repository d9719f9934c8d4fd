// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::client_failover_test {
namespace {

TEST_CASE("fail-over: a change goes over another path with the same permit and generation") {
  Bench bench;
  bench.attach(0);
  bench.attach(1);
  TestRequest request;
  bench.lane.submit(request);
  REQUIRE(bench.posts(0) == 1);
  CHECK(bench.trailer(0).generation == 1);
  bench.lane.detach(0);
  REQUIRE(bench.posts(1) == 1);
  CHECK(request.calls == 0);
  const auto& first = bench.queue_pairs[0].posts[0];
  const auto& again = bench.queue_pairs[1].posts[0];
  CHECK(again.data == first.data);
  CHECK(again.header == first.header);
  CHECK(again.immediate == first.immediate);
  CHECK(bench.reply(1, request.slot) == nullptr);
  CHECK(request.calls == 1);
  TestRequest next;
  bench.lane.submit(next);
  CHECK(bench.trailer(1).generation == 2);
}

TEST_CASE("fail-over: without a path requests wait, in flight or not, and go on when one is back") {
  Bench bench;
  bench.attach(0);
  TestRequest change, read{true}, third;
  for (TestRequest* request : {&change, &read, &third}) bench.lane.submit(*request);
  bench.lane.detach(0);
  TestRequest late;
  bench.lane.submit(late);
  CHECK(change.calls + read.calls + third.calls + late.calls == 0);
  bench.attach(2);
  CHECK(bench.posts(2) == 2);
  CHECK(bench.reply(2, change.slot) == nullptr);
  CHECK(bench.reply(2, read.slot, 0, 512) == nullptr);
  CHECK(change.calls + read.calls == 2);
  CHECK(bench.posts(2) == 4);
}

TEST_CASE("fail-over: an answer on the wrong path is no answer") {
  Bench bench;
  bench.attach(0);
  bench.attach(1);
  TestRequest request;
  bench.lane.submit(request);
  CHECK(bench.reply(1, request.slot) != nullptr);
  CHECK(request.calls == 0);
}

TEST_CASE("fail-over: the end of a change that was given up is asked for, a read is forgotten") {
  Bench bench;
  bench.attach(0);
  TestRequest change, read{true};
  bench.lane.submit(change);
  bench.lane.submit(read);
  SUBCASE("given up before") {
    bench.lane.cancel(change);
    bench.lane.cancel(read);
    bench.lane.detach(0);
  }
  SUBCASE("given up after") {
    bench.lane.detach(0);
    bench.lane.cancel(change);
    bench.lane.cancel(read);
  }
  CHECK(bench.lane.permits().in_use() == 1);
  bench.attach(1);
  REQUIRE(bench.posts(1) == 1);
  CHECK(bench.queue_pairs[1].posts[0].data.empty());
  CHECK(bench.trailer(1).generation == 1);
  CHECK(bench.trailer(1).flags == wire::kSettle);
  CHECK(bench.reply(1, change.slot, ECANCELED) == nullptr);
  CHECK(bench.lane.permits().in_use() == 0);
  CHECK(change.calls + read.calls == 0);
}

TEST_CASE("fail-over: with generations a broken renewal binds no permit") {
  Bench bench;
  bench.attach(0);
  bench.lane.detach(0);
  CHECK(bench.lane.lend_permit(0) == 0);
  CHECK(bench.lane.lend_permit(1) == 0);
  CHECK(bench.lane.permits().in_use() == 0);
}

TEST_CASE("fail-over: a new session starts its generations anew and renews what waits") {
  Bench bench;
  bench.attach(0);
  TestRequest done, change, given_up, waiting;
  bench.lane.submit(done);
  CHECK(bench.reply(0, done.slot) == nullptr);
  bench.lane.submit(change);
  bench.lane.submit(given_up);
  bench.lane.submit(waiting);
  bench.lane.detach(0);
  bench.lane.cancel(given_up);
  bench.lane.renew();
  CHECK(change.renewals == 1);
  CHECK(waiting.renewals == 1);
  CHECK(given_up.renewals == 0);
  bench.attach(0);
  REQUIRE(bench.posts(0) == 5);  // three before; the one that waited has the third permit's place
  CHECK(bench.trailer(0).generation == 1);
  CHECK(bench.trailer(0).flags == 0);
  CHECK(bench.reply(0, change.slot) == nullptr);
  CHECK(bench.reply(0, waiting.slot) == nullptr);
  CHECK(change.calls + waiting.calls == 2);
}

TEST_CASE("fail-over: requests fail when no path comes, later ones at once, until one is back") {
  Bench bench;
  bench.attach(0);
  TestRequest change, read{true}, waiting, late, after;
  for (TestRequest* request : {&change, &read, &waiting}) bench.lane.submit(*request);
  bench.lane.detach(0);
  bench.lane.fail_pending(EIO);
  for (TestRequest* request : {&change, &read, &waiting}) {
    CHECK(request->calls == 1);
    CHECK(request->error == EIO);
  }
  bench.lane.submit(late);
  CHECK(late.error == EIO);
  CHECK(bench.lane.permits().in_use() == 1);
  bench.attach(0);
  CHECK(bench.trailer(0).flags == wire::kSettle);
  bench.lane.submit(after);
  CHECK(bench.reply(0, after.slot) == nullptr);
  CHECK(after.calls == 1);
  CHECK(after.error == 0);
}

TEST_CASE("fail-over: no new change goes before one that failed by time-out has really ended") {
  Unresolved barrier;
  int opened = 0;
  barrier.on_end = [&] { ++opened; };
  Bench bench{true, &barrier};
  ClientLane other{0, 2, &barrier};
  FakeQueuePair other_queue_pair;
  bench.attach(0);
  TestRequest failed, newer, read{true}, elsewhere;
  bench.lane.submit(failed);
  bench.lane.detach(0);
  bench.lane.fail_pending(EIO);
  CHECK(failed.error == EIO);
  bench.attach(0);
  other.attach(0, {.queue_pair = &other_queue_pair,
                   .chunks = bench.chunks[1],
                   .queue_depth = 2,
                   .chunk_size = 8192,
                   .max_io_size = 4096,
                   .exactly_once = true});
  CHECK(bench.posts(0) == 2);
  CHECK(bench.trailer(0).flags == wire::kSettle);
  bench.lane.submit(read);
  CHECK(bench.posts(0) == 3);
  CHECK(bench.reply(0, read.slot, 0, 512) == nullptr);
  bench.lane.submit(newer);
  other.submit(elsewhere);
  CHECK(bench.posts(0) == 3);
  CHECK(other_queue_pair.posts.empty());
  CHECK(bench.reply(0, failed.slot) == nullptr);
  CHECK(opened == 1);
  other.resume();
  CHECK(bench.posts(0) == 4);
  CHECK(other_queue_pair.posts.size() == 1);
}

TEST_CASE("a path is needed as long as its answers are awaited, there or when it is back") {
  bool once = true;
  SUBCASE("with an own peer") {}
  SUBCASE("with Linux") { once = false; }
  Bench bench{once};
  bench.attach(0);
  bench.attach(1);
  CHECK_FALSE(bench.lane.bound(0));
  TestRequest change, read{true};
  bench.lane.submit(change);
  bench.lane.submit(read);
  REQUIRE(bench.posts(0) == 1);
  CHECK(bench.lane.bound(0));
  bench.lane.detach(0);
  CHECK(bench.lane.bound(0) == !once);
  CHECK(bench.lane.connection(0).sent() == 1);
  if (!once) {
    bench.lane.cancel(change);  // nobody waits, but it may still be carried out
    CHECK(bench.lane.bound(0));
    bench.attach(0);
    CHECK_FALSE(bench.lane.bound(0));
    bench.lane.detach(0);
  }
  CHECK_FALSE(bench.lane.bound(0));
  bench.lane.forget(0);
  CHECK(bench.lane.connection(0).sent() == 0);
}

TEST_CASE("policies choose among the paths in use, and among all when none of these works") {
  Bench bench;
  bench.attach(0);
  bench.attach(1);
  bench.attach(2);
  const auto send = [&] {
    TestRequest request;
    bench.lane.submit(request);
    for (unsigned i = 0; i < 3; ++i) {
      if (bench.lane.in_flight(i) == 0) continue;
      CHECK(bench.reply(i, request.slot) == nullptr);
      return i;
    }
    return 3U;
  };
  bench.lane.use(0b111, PathPolicy::round_robin);
  CHECK(send() == 1);
  CHECK(send() == 2);
  CHECK(send() == 0);
  bench.lane.use(0b110, PathPolicy::round_robin);
  CHECK(send() == 1);
  CHECK(send() == 2);
  CHECK(send() == 1);
  bench.lane.set_latency(0, std::chrono::microseconds{90});
  bench.lane.set_latency(1, std::chrono::microseconds{80});
  bench.lane.set_latency(2, std::chrono::microseconds{70});
  bench.lane.use(0b111, PathPolicy::min_latency);
  CHECK(send() == 2);
  bench.lane.use(0b111, PathPolicy::min_inflight);
  TestRequest busy;
  bench.lane.submit(busy);
  CHECK(bench.lane.in_flight(0) == 1);
  CHECK(bench.posts(1) + bench.posts(2) == 6);
  TestRequest other;
  bench.lane.submit(other);
  CHECK(bench.lane.in_flight(1) == 1);
  CHECK(bench.reply(0, busy.slot) == nullptr);
  CHECK(bench.reply(1, other.slot) == nullptr);
  bench.lane.detach(1);
  bench.lane.use(0b010, PathPolicy::min_inflight);
  CHECK(send() == 0);
}

}  // namespace
}  // namespace rtrs::client_failover_test
