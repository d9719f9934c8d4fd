// What becomes of a renewal whose server does not answer the OPEN of a device.
#include <doctest/doctest.h>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test {
namespace {

struct SilentWorld : World {
  using World::World;
  /// The server was restarted, and hangs with that device.
  bool give_up(const std::string& name) {
    client->server.restart(20);
    return client->reopen_in_vain(name);
  }
  /// Who is asked for, in order.
  std::vector<std::string>& watch_opens(int error = 0) {
    client->server.fail = [this, error](const Arrival& arrival) {
      if (arrival.type() != MessageType::open) return 0;
      asked.push_back(wire::decode_open(arrival.message)->device_name);
      return error;
    };
    return asked;
  }
  std::vector<std::string> asked;
};

TEST_CASE("renewal: a device that the server does not answer is left out, and the others go on") {
  SilentWorld world;
  const Device a = world.open("a");
  const Device b = world.open("b");
  const Device c = world.open("c");
  CHECK(world.give_up("a"));
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0] ==
        "the server does not answer the OPEN of 'a' (rw); it is tried again, and the others come "
        "first");
  // It may have opened it nevertheless.
  world.client->server.open["a"] = 99;
  const std::uint32_t newest = 4;
  world.client->server.opened_by[newest] = "a";

  auto& asked = world.watch_opens();
  CHECK(world.client->reopen() == 0);
  CHECK(asked == std::vector<std::string>{"b", "c"});
  REQUIRE(world.log.size() == 2);
  CHECK(world.log[1] ==
        "the server does not answer the OPEN of 'a' (rw); those who have it open get EIO until "
        "they open it anew");
  CHECK(world.reached(*a) == "Input/output error");
  CHECK(world.reached(*b) == "b");
  CHECK(world.reached(*c) == "c");

  CHECK(world.client->do_errands() == 1);
  CHECK(world.client->server.open.count("a") == 0);
  const Device again = world.open("a");
  CHECK(world.reached(*again) == "a");
}

TEST_CASE(
    "renewal: it is asked for again, last, if the others have nothing to gain by leaving it") {
  SilentWorld world;
  const Device a = world.open("a");
  const Device b = world.open("b");
  CHECK(world.give_up("a"));
  auto& asked = world.watch_opens(EBUSY);
  CHECK(world.client->reopen() == EBUSY);
  CHECK(asked == std::vector<std::string>{"b", "a"});
  // It has answered: from here on it is as any other one.
  asked.clear();
  world.watch_opens();
  CHECK(world.client->reopen() == 0);
  CHECK(asked == std::vector<std::string>{"a", "b"});
  CHECK(world.reached(*a) == "a");
  CHECK(world.reached(*b) == "b");
}

TEST_CASE("renewal: a server that is silent is waited for where nobody gains by anything else") {
  std::uint32_t features = FakeOptions{}.features;
  bool alone = false;
  SUBCASE("a single device") { alone = true; }
  SUBCASE("no device is lost alone without exactly-once requests") {
    features = rtrs::wire::kFeatureUserMessages;
  }
  SilentWorld world{{.features = features}};
  const Device a = world.open("a");
  const Device b = alone ? nullptr : world.open("b");
  CHECK_FALSE(world.give_up("a"));
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0] ==
        "the server does not answer the OPEN of 'a' (rw); all requests wait for it");
  CHECK(world.client->reopen() == 0);
  CHECK(world.reached(*a) == "a");
}

}  // namespace
}  // namespace rnbd::test
