// SPDX-License-Identifier: BSD-3-Clause
// Clients that an operator has put out.
#include "bridge/server/evicted_clients.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <ctime>

#include "tests/unit/server/fixture.hpp"

namespace evicted_clients_test {

using namespace rnbd;
using namespace rnbd::test;

TEST_CASE("evicted: a client is out until it is let in or its time is over, others are not") {
  std::int64_t now = 1000;
  std::string kept;
  EvictedClients out;
  const auto keeper = [&] {
    return EvictedClients::Keeper{[&] { return now; },
                                  [&](const std::string& list) -> tl::expected<void, std::string> {
                                    kept = list;
                                    return {};
                                  }};
  };
  REQUIRE(out.keep(keeper(), "").has_value());
  REQUIRE(out.add({"host1", "vm 1\nx", 0}).has_value());
  REQUIRE(out.add({"@10.0.0.7", "vm2", 1060}).has_value());
  const User proven{"host1", "10.0.0.5:40000"}, address{"", "10.0.0.7:40001"};
  CHECK(out.contains(proven));
  CHECK(out.contains({"host1", "10.9.9.9:1"}));
  CHECK(out.contains(address));
  CHECK_FALSE(out.contains({"host2", "10.0.0.5:40000"}));
  CHECK_FALSE(out.contains({"host2", "10.0.0.7:40001"}));
  CHECK_FALSE(out.contains({"", "10.0.0.70:40001"}));
  SUBCASE("its time is over") {
    now = 1060;
    CHECK_FALSE(out.contains(address));
    CHECK(out.contains(proven));
    CHECK(out.all().size() == 1);
  }
  SUBCASE("it is let in") {
    CHECK(out.readmit("host1")->size() == 1);
    CHECK_FALSE(out.contains(proven));
    CHECK(out.contains(address));
    CHECK(out.readmit("host1")->empty());
  }
  SUBCASE("all are let in") {
    CHECK(out.readmit("all")->size() == 2);
    CHECK(out.all().empty());
    CHECK(kept.empty());
  }
  SUBCASE("it is put out once more, for good") {
    REQUIRE(out.add({"@10.0.0.7", "vm2", 0}).has_value());
    CHECK(out.all().size() == 2);
    now = 5000;
    CHECK(out.contains(address));
  }
  SUBCASE("the server is started again") {
    EvictedClients next;
    REQUIRE(next.keep(keeper(), kept).has_value());
    CHECK(next.all().size() == 2);
    CHECK(next.contains(proven));
    CHECK(next.all()[1] == out.all()[1]);
  }
  SUBCASE("a list that nobody has written is refused") {
    EvictedClients next;
    CHECK_FALSE(next.keep(keeper(), "tomorrow host1 vm1\n").has_value());
  }
}

TEST_CASE("evicted: a time ends also where nobody keeps the list") {
  EvictedClients out;
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  REQUIRE(out.add({"host1", "vm1", now}).has_value());
  REQUIRE(out.add({"host2", "vm2", now + 3600}).has_value());
  CHECK_FALSE(out.contains({"host1", "10.0.0.5:40000"}));
  CHECK(out.contains({"host2", "10.0.0.5:40000"}));
  CHECK(out.all().size() == 1);
}

TEST_CASE("evicted: an address is one however it is written, and no other one is out") {
  EvictedClients out;
  REQUIRE(out.add({who_is({"", "[::ffff:10.0.0.5]:40000"}), "vm1"}).has_value());
  CHECK(out.all().front().who == "@10.0.0.5");
  CHECK(out.contains({"", "10.0.0.5:40001"}));
  CHECK(out.contains({"", "[::ffff:10.0.0.5]:40001"}));
  CHECK(out.contains({"", "[::ffff:a00:5]:40001"}));
  CHECK_FALSE(out.contains({"", "[::ffff:10.0.0.6]:40001"}));
  REQUIRE(out.add({who_is({"", "[fd00::7]:40000"}), "vm1"}).has_value());
  CHECK_FALSE(out.contains({"", "[fd00::9:1]:40000"}));
  CHECK(out.contains({"", "[fd00:0::7]:40000"}));
  CHECK_FALSE(out.contains({"", "[fd00:0:0:1::7]:40000"}));
  CHECK_FALSE(out.contains({"host1", "[fd00::7]:40000"}));
  CHECK(who_is({"", "somewhere:1"}) == "@somewhere");
}

TEST_CASE("evicted: a client is let in by each name that people have for it") {
  const EvictedClient v4{"@10.0.0.5", "vm1"}, v6{"@[fd00::7]", "vm1"}, key{"host1", "vm2"},
      elsewhere{"@10.0.0.9", "host1"};
  const auto let_in = [&](const char* name) {
    EvictedClients out;
    for (const EvictedClient& each : {v4, v6, key, elsewhere}) REQUIRE(out.add(each).has_value());
    const auto in = out.readmit(name);
    REQUIRE(in.has_value());
    CHECK(out.all().size() + in->size() == 4);
    return *in;
  };
  using Clients = std::vector<EvictedClient>;
  for (const char* name : {"@10.0.0.5", "10.0.0.5", "10.0.0.5:40312", "@::ffff:10.0.0.5"})
    CHECK(let_in(name) == Clients{v4});
  for (const char* name : {"@[fd00::7]", "[fd00::7]", "fd00::7", "fd00:0::7", "[fd00::7]:40312"})
    CHECK(let_in(name) == Clients{v6});
  CHECK(let_in("vm1") == Clients{v4, v6});
  CHECK(let_in("vm2") == Clients{key});
  CHECK(let_in("host1") == Clients{key});  // a name that was proven comes before one that was not
  for (const char* name : {"10.0.0.50", "vm", "@host1", "", "disk0"}) CHECK(let_in(name).empty());
}

TEST_CASE("evicted: a client that is out is told so, and what lets it in") {
  World world;
  world.catalogue.evicted().add({"@127.0.0.1", "vm1", 0});
  for (const char* name : {"disk", "nothing"}) {
    const auto told = wire::decode_who_response(
        world.send(world.session(), wire::encode_who(name), true, room(8 + wire::kMaxWho)).data);
    REQUIRE(told.has_value());
    CHECK(told->refused);
    CHECK(told->text ==
          "the server's operator has evicted this client; what lets it in again, at the server: "
          "rnbd-ctl server readmit @127.0.0.1");
  }
}

TEST_CASE("evicted: a client that is out opens nothing, neither anew nor again") {
  World world;
  world.catalogue.evicted().add({"@10.0.0.5", "vm1", 0});
  SessionFacts facts;
  facts.name = "vm1";
  facts.peer = "10.0.0.5:40312";
  facts.extensions = true;
  facts.queue_depth = 4;
  facts.max_io_size = 4096;
  BlockSession session{facts, world.catalogue, world.queues, world.services};
  CHECK(world.open(session, "disk").error == EACCES);
  CHECK(world.open(session, "nothing").error == EACCES);
  REQUIRE(world.catalogue.evicted().readmit("@10.0.0.5").has_value());
  CHECK(world.open(session, "disk").error == 0);
}

}  // namespace evicted_clients_test
