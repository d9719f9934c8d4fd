// SPDX-License-Identifier: BSD-3-Clause
// A cancelled operation is counted until its end is known.
#include "rdma/core/unresolved.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <memory>

#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::unresolved_test {
namespace {

struct World {
  explicit World(bool once = true) : bench{once} {
    read.scope = change.scope = &count;
    bench.attach(0);
  }
  void submit_both() {
    bench.lane.submit(read);
    bench.lane.submit(change);
  }
  void give_up_both() {
    bench.lane.cancel(read);
    bench.lane.cancel(change);
  }

  std::shared_ptr<Unresolved> count = std::make_shared<Unresolved>();
  Bench bench;
  TestRequest read{/*read=*/true};
  TestRequest change;
};

TEST_CASE("unresolved: what is answered, or was never sent, does not count") {
  World world;
  TestRequest third;
  third.scope = &world.count;
  world.submit_both();
  world.bench.lane.submit(third);  // there is no permit for it
  world.bench.lane.cancel(third);
  CHECK_FALSE(world.count->any());
  REQUIRE(world.bench.reply(0, 0, 0, 512) == nullptr);
  REQUIRE(world.bench.reply(0, 1) == nullptr);
  CHECK(world.read.calls == 1);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: what is under way counts until its answer") {
  World world;
  world.submit_both();
  world.bench.lane.cancel(world.read);
  CHECK(world.count->any());
  CHECK_FALSE(world.count->writes());
  world.bench.lane.cancel(world.change);
  CHECK(world.count->writes());
  REQUIRE(world.bench.reply(0, 1, EIO) == nullptr);
  CHECK(world.count->any());
  CHECK_FALSE(world.count->writes());
  REQUIRE(world.bench.reply(0, 0) == nullptr);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: with generations a read ends with its path") {
  World world;
  world.bench.lane.submit(world.read);
  SUBCASE("that dies") {
    world.bench.lane.cancel(world.read);
    CHECK(world.count->any());
    world.bench.lane.detach(0);
  }
  SUBCASE("that is dead") {
    world.bench.lane.detach(0);
    world.bench.lane.cancel(world.read);
  }
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: with generations a change ends when it is settled") {
  World world;
  world.bench.lane.submit(world.change);
  world.bench.lane.detach(0);
  bool failed = false;
  SUBCASE("and failed, by an answer") { failed = true; }
  SUBCASE("by an answer") {}
  if (failed) {
    world.bench.lane.fail_pending(EIO);
    CHECK(world.change.error == EIO);
  } else {
    world.bench.lane.cancel(world.change);
  }
  CHECK(world.count->writes());
  world.bench.attach(1);
  CHECK(world.count->writes());
  REQUIRE(world.bench.reply(1, 0) == nullptr);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: nothing of an old session counts in the next one, or behind the last one") {
  World world;
  world.submit_both();
  world.bench.lane.detach(0);
  world.give_up_both();
  CHECK(world.count->writes());
  SUBCASE("renewed") { world.bench.lane.renew(); }
  SUBCASE("shut down") { world.bench.lane.shut_down(EIO); }
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: a Linux server has ended it when it lets its path come back") {
  World world{/*once=*/false};
  world.submit_both();
  world.give_up_both();
  world.bench.lane.detach(0);
  world.bench.attach(1);
  CHECK(world.count->any());
  CHECK(world.count->writes());
  world.bench.attach(0);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("unresolved: whoever counts may be gone before the answer") {
  World world;
  world.submit_both();
  world.give_up_both();
  const std::weak_ptr<Unresolved> last = std::exchange(world.count, nullptr);
  CHECK(last.lock()->any());
  REQUIRE(world.bench.reply(0, 0) == nullptr);
  REQUIRE(world.bench.reply(0, 1) == nullptr);
  CHECK(last.expired());
}

/// Two lanes of a session, and two who use both.
struct TwoLanes {
  TwoLanes() : bench{true, &barrier}, other{2, 2, &barrier} {
    barrier.on_end = [this] { ++wakes; };
    bench.attach(0);
    other.attach(0, {.queue_pair = &other_queue_pair,
                     .chunks = bench.chunks[1],
                     .queue_depth = 4,
                     .chunk_size = 8192,
                     .max_io_size = 4096,
                     .exactly_once = true});
    for (TestRequest* request : {&change, &newer, &elsewhere, &foreign}) {
      request->scope = request == &foreign ? &somebody_else : &owner;
      request->waits_for_scope = true;
    }
    read.scope = &owner;
  }

  int wakes = 0;
  Unresolved barrier;
  std::shared_ptr<Unresolved> owner = std::make_shared<Unresolved>();
  std::shared_ptr<Unresolved> somebody_else = std::make_shared<Unresolved>();
  Bench bench;
  FakeQueuePair other_queue_pair;
  ClientLane other;
  TestRequest change, newer, elsewhere, foreign, read{/*read=*/true};
};

TEST_CASE("unresolved: no newer change of its owner is sent before its end, on no lane") {
  TwoLanes world;
  ClientLane& lane = world.bench.lane;
  lane.submit(world.change);
  SUBCASE("its caller has left") { lane.cancel(world.change); }
  SUBCASE("it failed for want of a path") {
    lane.detach(0);
    lane.fail_pending(EIO);
    world.bench.attach(0);
    CHECK(world.bench.trailer(0).flags == wire::kSettle);
  }
  const std::size_t posts = world.bench.posts(0);
  lane.submit(world.newer);
  world.other.submit(world.elsewhere);
  CHECK(world.bench.posts(0) == posts);
  CHECK(world.other_queue_pair.posts.empty());
  CHECK(lane.holds_back_owner());
  CHECK(world.other.holds_back_owner());
  // Operations that it does not touch go on, and so do reads.
  world.other.submit(world.foreign);
  world.other.submit(world.read);
  CHECK(world.other_queue_pair.posts.size() == 2);
  CHECK_FALSE(world.barrier.writes());

  CHECK(world.bench.reply(0, 0) == nullptr);
  CHECK(world.wakes == 1);
  CHECK(world.bench.posts(0) == posts + 1);
  world.other.resume();
  CHECK(world.other_queue_pair.posts.size() == 2);  // no permit is free
  CHECK_FALSE(world.other.holds_back_owner());
}

TEST_CASE("unresolved: a read that a change builds upon waits for the end of an older change") {
  TwoLanes world;
  world.bench.lane.submit(world.change);
  world.bench.lane.cancel(world.change);
  world.read.waits_for_scope = true;
  world.other.submit(world.read);
  CHECK(world.other_queue_pair.posts.empty());
  CHECK(world.other.holds_back_owner());
  CHECK(world.bench.reply(0, 0) == nullptr);
  world.other.resume();
  CHECK(world.other_queue_pair.posts.size() == 1);
}

TEST_CASE("unresolved: a change that was never sent holds back nothing") {
  TwoLanes world;
  world.bench.lane.detach(0);
  world.bench.lane.submit(world.change);
  world.bench.lane.cancel(world.change);
  world.bench.attach(0);
  world.bench.lane.submit(world.newer);
  CHECK(world.bench.posts(0) == 1);
}

}  // namespace
}  // namespace rtrs::unresolved_test
