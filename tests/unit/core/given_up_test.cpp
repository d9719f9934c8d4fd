// What was given up is counted until its end is known.
#include "rdma/core/given_up.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <memory>

#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs {
namespace {

struct World {
  explicit World(bool once = true) : bench{once} {
    read.given_up = change.given_up = &count;
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

  std::shared_ptr<GivenUp> count = std::make_shared<GivenUp>();
  Bench bench;
  TestRequest read{/*read=*/true};
  TestRequest change;
};

TEST_CASE("given up: what is answered, or was never sent, does not count") {
  World world;
  TestRequest third;
  third.given_up = &world.count;
  world.submit_both();
  world.bench.lane.submit(third);  // there is no permit for it
  world.bench.lane.cancel(third);
  CHECK_FALSE(world.count->any());
  REQUIRE(world.bench.reply(0, 0, 0, 512) == nullptr);
  REQUIRE(world.bench.reply(0, 1) == nullptr);
  CHECK(world.read.calls == 1);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("given up: what is under way counts until its answer") {
  World world;
  world.submit_both();
  world.bench.lane.cancel(world.read);
  CHECK(world.count->any());
  CHECK_FALSE(world.count->changes());
  world.bench.lane.cancel(world.change);
  CHECK(world.count->changes());
  REQUIRE(world.bench.reply(0, 1, EIO) == nullptr);
  CHECK(world.count->any());
  CHECK_FALSE(world.count->changes());
  REQUIRE(world.bench.reply(0, 0) == nullptr);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("given up: with generations a read ends with its path") {
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

TEST_CASE("given up: with generations a change ends when it is settled") {
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
  CHECK(world.count->changes());
  world.bench.attach(1);
  CHECK(world.count->changes());
  REQUIRE(world.bench.reply(1, 0) == nullptr);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("given up: nothing of an old session counts in the next one, or behind the last one") {
  World world;
  world.submit_both();
  world.bench.lane.detach(0);
  world.give_up_both();
  CHECK(world.count->changes());
  SUBCASE("renewed") { world.bench.lane.renew(); }
  SUBCASE("shut down") { world.bench.lane.shut_down(EIO); }
  CHECK_FALSE(world.count->any());
}

TEST_CASE("given up: a Linux server has ended it when it lets its path come back") {
  World world{/*once=*/false};
  world.submit_both();
  world.give_up_both();
  world.bench.lane.detach(0);
  world.bench.attach(1);
  CHECK(world.count->any());
  CHECK(world.count->changes());
  world.bench.attach(0);
  CHECK_FALSE(world.count->any());
}

TEST_CASE("given up: whoever counts may be gone before the answer") {
  World world;
  world.submit_both();
  world.give_up_both();
  const std::weak_ptr<GivenUp> last = std::exchange(world.count, nullptr);
  CHECK(last.lock()->any());
  REQUIRE(world.bench.reply(0, 0) == nullptr);
  REQUIRE(world.bench.reply(0, 1) == nullptr);
  CHECK(last.expired());
}

}  // namespace
}  // namespace rtrs
