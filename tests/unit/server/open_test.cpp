// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/server/fixture.hpp"

namespace open_test {

using namespace rnbd;
using namespace rnbd::test;

TEST_CASE("session info: answered with the smaller of both major versions") {
  World world;
  for (const auto& [client, answer] : {std::pair{2, 2}, {1, 1}, {9, 2}, {0, 0}}) {
    wire::SessionInfo info;
    info.version = static_cast<std::uint8_t>(client);
    Call& call = world.send(world.session(), info, true, room(sizeof info));
    CHECK(call.error == 0);
    CHECK(call.answer<wire::SessionInfo>().version == answer);
    CHECK(call.answer<wire::SessionInfo>().header.type == 1);
  }
}

TEST_CASE("answers: room behind the answer is zeroed, too little room is EINVAL") {
  World world;
  Call& roomy = world.send(world.session(), wire::SessionInfo{}, true, room(100));
  CHECK(roomy.error == 0);
  for (std::size_t i = sizeof(wire::SessionInfo); i < 100; ++i) CHECK(roomy.data[i] == std::byte{});
  CHECK(world.send(world.session(), wire::SessionInfo{}, true, room(35)).error == EINVAL);
  CHECK(world.send(world.session(), wire::SessionInfo{}, false, room(36)).error == EINVAL);
}

TEST_CASE("messages: what is unknown, cut or empty is EINVAL") {
  World world;
  CHECK(world.send_bytes(world.session(), {}, true, room(64)).error == EINVAL);
  CHECK(world.send_bytes(world.session(), {std::byte{4}}, true, room(64)).error == EINVAL);
  for (const std::uint16_t type : {1, 3, 6, 99, 0x8000, 0x8002, 0x8008, 0xFFFF}) {
    CAPTURE(type);
    wire::SessionInfo message;
    message.header.type = type;
    CHECK(world.send(world.session(), message, true, room(64)).error == EINVAL);
  }
  wire::Close close;
  close.header = wire::header_of(wire::MessageType::close);
  const auto bytes = rtrs::wire::bytes_of(close);
  CHECK(world.send_bytes(world.session(), {bytes.begin(), bytes.begin() + 7}, false, {}).error ==
        EINVAL);
  wire::Io io;
  io.header = wire::header_of(wire::MessageType::io);
  const auto io_bytes = rtrs::wire::bytes_of(io);
  CHECK(
      world.send_bytes(world.session(), {io_bytes.begin(), io_bytes.begin() + 25}, true, room(512))
          .error == EINVAL);
}

TEST_CASE("open: ids start at 0, and none is used twice") {
  World world;
  for (const char* name : {"a", "b", "c"}) world.add(name, 4096);
  const auto id = [&](const char* name) {
    Call& call = world.open(world.session(), name);
    REQUIRE(call.error == 0);
    return call.answer<wire::OpenResponse>().device_id.value();
  };
  CHECK(id("a") == 0);
  CHECK(id("b") == 1);
  CHECK(id("c") == 2);
  world.close(world.session(), 1);
  world.close(world.session(), 0);
  CHECK(id("disk") == 1024);
  CHECK(id("b") == 1025);
  CHECK(world.session().devices().size() == 3);
}

TEST_CASE("open: what is still under way to a closed device does not reach the next one") {
  World world;
  world.add("other", 4096);
  world.open(world.session(), "disk");
  world.close(world.session(), 0);
  REQUIRE(world.open(world.session(), "other").error == 0);
  CHECK(world.io(world.session(), 1, 0, 512, false, 512).error == ENOTCONN);
  CHECK(world.io(world.session(), 0, 0, 512, true, 512).error == ENOTCONN);
}

TEST_CASE("open: the identical name again answers the same device and takes no second right") {
  World world;
  world.add("other", 4096);
  Call& first = world.open(world.session(), "disk");
  Call& again = world.open(world.session(), "disk", wire::AccessMode::migration);
  CHECK(again.error == 0);
  CHECK(again.data == first.data);
  CHECK(world.session().devices().size() == 1);
  world.close(world.session(), 0);
  auto other = world.make_session("other");
  CHECK(world.open(*other, "disk").error == 0);
}

TEST_CASE("open: a name that does not exist is ENOENT and keeps nothing") {
  World world;
  CHECK(world.open(world.session(), "disc").error == ENOENT);
  CHECK(world.open(world.session(), "/disk").error == ENOENT);
  CHECK(world.open(world.session(), "disk/").error == ENOENT);
  CHECK(world.session().devices().size() == 0);
}

TEST_CASE("open: a malformed message is EINVAL and opens nothing") {
  World world;
  const auto send = [&](const wire::Open& open, std::size_t size) {
    return world.send(world.session(), open, true, room(size)).error;
  };
  const wire::Open good = wire::encode_open("disk", wire::AccessMode::read_write);
  wire::Open open = good;
  open.access_mode = 3;
  CHECK(send(open, 56) == EINVAL);
  open = good;
  open.device_name.fill('x');
  CHECK(send(open, 56) == EINVAL);
  open = good;
  open.device_name.fill('\0');
  CHECK(send(open, 56) == EINVAL);
  open = good;
  open.device_name[1] = '\n';
  CHECK(send(open, 56) == EINVAL);
  CHECK(send(good, 55) == EINVAL);
  CHECK(world.send(world.session(), good, false, room(56)).error == EINVAL);
  CHECK(world.session().devices().size() == 0);
  CHECK(send(good, 56) == 0);
}

TEST_CASE("open: garbage behind the name's end does not matter") {
  World world;
  wire::Open open;
  open.header = wire::header_of(wire::MessageType::open);
  open.header.padding = 0xBEEF;
  open.access_mode = 1;
  open.flags = 0xFF;
  open.device_name.fill('\xEE');
  std::memcpy(open.device_name.data(), "disk", 5);
  CHECK(world.send(world.session(), open, true, room(56)).error == 0);
}

TEST_CASE("open: one session cannot open devices without end") {
  World world;
  for (std::size_t n = 0; n < OpenTable::kMaxDevices; ++n) {
    const std::string name = "many" + std::to_string(n);
    world.add(name, 512);
    REQUIRE(world.open(world.session(), name, wire::AccessMode::read_only).error == 0);
  }
  CHECK(world.open(world.session(), "disk").error == EMFILE);
  world.close(world.session(), 17);
  Call& call = world.open(world.session(), "disk");
  CHECK(call.error == 0);
  CHECK(call.answer<wire::OpenResponse>().device_id == 17 + OpenTable::kMaxDevices);
}

TEST_CASE("open: a backend that cannot give this reactor a queue is ENOMEM and keeps no right") {
  World world;
  world.disk().fail_queue = true;
  CHECK(world.open(world.session(), "disk").error == ENOMEM);
  world.disk().fail_queue = false;
  CHECK(world.open(world.session(), "disk").error == 0);
}

TEST_CASE("open: all sessions of a reactor share one queue per export") {
  World world;
  auto other = world.make_session("other");
  world.open(world.session(), "disk");
  world.open(*other, "disk", wire::AccessMode::read_only);
  CHECK(world.disk().queues == 1);
}

TEST_CASE("open: refusals in the log are few, and nobody can write its own lines there") {
  World world;
  world.open(world.session(), "no\x9B'thing");
  CHECK(world.log.back().find("'no\\x9b\\x27thing'") != std::string::npos);
  for (int n = 0; n < 1000; ++n) world.open(world.session(), "nothing");
  CHECK(world.log.size() == 20);
}

TEST_CASE("open: one line in the log tells of one refusal by right, and the last says so") {
  World world;
  world.give_to("somebody", "disk");
  world.log.clear();
  CHECK(world.open(world.session(), "disk").error == ENOENT);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log.back().ends_with("why=\"not in rw or ro\""));
  for (int n = 0; n < 1000; ++n) world.open(world.session(), "disk");
  CHECK(world.log.size() == 20);
  CHECK(world.log.back().ends_with("(further refusals are not logged)"));
}

namespace {

Call& open_numbered(World& world, const char* name, std::uint32_t number, std::uint32_t settled,
                    wire::AccessMode mode = wire::AccessMode::read_write) {
  const wire::NumberedOpen message{wire::encode_open(name, mode), {number, settled}};
  return world.send(world.session(), message, true, room(sizeof(wire::OpenResponse)));
}

Call& close_numbered(World& world, std::uint32_t id, std::uint32_t number, std::uint32_t settled) {
  wire::NumberedClose message;
  message.header = wire::header_of(wire::MessageType::close);
  message.device_id = id;
  message.order = {number, settled};
  return world.send(world.session(), message, false, {});
}

}  // namespace

TEST_CASE("open: a copy that comes when its sender was answered elsewhere opens nothing") {
  World world;
  world.add("a", 4096);
  CHECK(open_numbered(world, "disk", 1, 1).error == 0);
  CHECK(open_numbered(world, "disk", 1, 1).error == 0);  // over another path
  CHECK(world.session().devices().size() == 1);
  SUBCASE("behind the CLOSE") { CHECK(close_numbered(world, 0, 1, 2).error == 0); }
  SUBCASE("behind the CLOSE and a newer OPEN") {
    CHECK(close_numbered(world, 0, 1, 2).error == 0);
    CHECK(open_numbered(world, "a", 2, 2).error == 0);
    CHECK(close_numbered(world, 1024, 2, 3).error == 0);
  }
  CHECK(open_numbered(world, "disk", 1, 1).error == ECANCELED);
  CHECK(world.session().devices().size() == 0);
  CHECK(world.open(*world.make_session("other"), "disk").error == 0);  // nobody writes to it
}

TEST_CASE("open: what its CLOSE has overtaken opens nothing, whatever else is unanswered") {
  World world;
  SUBCASE("by its number") {
    CHECK(close_numbered(world, wire::kUnknownDevice, 2, 1).error == 0);
    CHECK(open_numbered(world, "disk", 2, 1).error == ECANCELED);
  }
  SUBCASE("by its id, in a copy") {
    CHECK(open_numbered(world, "disk", 2, 1).error == 0);
    CHECK(close_numbered(world, 0, 2, 1).error == 0);
    CHECK(open_numbered(world, "disk", 2, 1).error == ECANCELED);
  }
  SUBCASE("though it names an older one: a renewal sent two, and the first one is late") {
    CHECK(open_numbered(world, "disk", 4, 1).error == 0);
    CHECK(close_numbered(world, 0, 2, 1).error == 0);
    CHECK(open_numbered(world, "disk", 3, 1).error == ECANCELED);
    CHECK(open_numbered(world, "disk", 4, 1).error == ECANCELED);
  }
  CHECK(world.session().devices().size() == 0);
  CHECK(open_numbered(world, "disk", 5, 1, wire::AccessMode::read_only).error == 0);
}

TEST_CASE("open: nobody writes beside what he has closed while it still runs, in no mode") {
  constexpr auto kMigration = wire::AccessMode::migration;
  World world;
  REQUIRE(open_numbered(world, "disk", 1, 1, kMigration).error == 0);
  world.disk().hold = true;
  const Call& slow = world.io(world.session(), 1, 0, 512, false, 512);
  const Call& close = close_numbered(world, 0, 1, 2);
  CHECK(open_numbered(world, "disk", 2, 2, kMigration).error == EPERM);
  CHECK(open_numbered(world, "disk", 3, 3, wire::AccessMode::read_only).error == 0);
  CHECK(world.open(*world.make_session("other"), "disk", kMigration).error == 0);
  world.disk().answer();
  CHECK(slow.finished + close.finished == 2);
  CHECK(close_numbered(world, 1, 3, 4).error == 0);
  CHECK(open_numbered(world, "disk", 4, 4, kMigration).error == 0);
}

TEST_CASE("open: what was refused opens nothing in a copy that is carried out later") {
  World world;
  auto other = world.make_session("other");
  REQUIRE(world.open(*other, "disk").error == 0);
  std::vector<std::function<void()>> go_on;
  world.services.sessions = &world.services;
  world.services.on_reclaim = [&](rtrs::Reactor*, const WriterCount*, const std::string&,
                                  std::function<void()> then) { go_on.push_back(std::move(then)); };
  const Call& slow = open_numbered(world, "disk", 1, 1);
  const Call& copy = open_numbered(world, "disk", 1, 1);  // over another path
  REQUIRE(go_on.size() == 2);
  go_on[1]();
  CHECK(copy.error == EPERM);
  other.reset();
  go_on[0]();
  CHECK(slow.error == EPERM);
  CHECK(open_numbered(world, "disk", 1, 1).error == EPERM);
  CHECK(world.session().devices().size() == 0);
  CHECK(open_numbered(world, "disk", 2, 2).error == 0);
}

TEST_CASE("open: refusals that nobody settles are not remembered without end") {
  World world;
  for (std::uint32_t n = 1; n <= 1024; ++n) open_numbered(world, "nothing", n, 1);
  CHECK(open_numbered(world, "disk", 1, 1).error == ENOENT);
  CHECK(open_numbered(world, "nothing", 1025, 1).error == ENOENT);
  CHECK(open_numbered(world, "disk", 1025, 1).error == 0);
}

TEST_CASE("open: one that nobody has answered yet is not taken for an old copy") {
  World world;
  world.add("a", 4096);
  CHECK(open_numbered(world, "a", 2, 1).error == 0);
  CHECK(open_numbered(world, "disk", 1, 1).error == 0);
}

TEST_CASE("open: what an OPEN opened whose answer nobody took is closed by its number") {
  World world;
  CHECK(open_numbered(world, "disk", 7, 7).error == 0);
  CHECK(close_numbered(world, wire::kUnknownDevice, 6, 8).error == 0);
  CHECK(world.session().devices().size() == 1);
  CHECK(close_numbered(world, wire::kUnknownDevice, 7, 8).error == 0);
  CHECK(world.session().devices().size() == 0);
}

TEST_CASE("open: what Linux's clients leave behind a message has no meaning") {
  World world{{.extensions = false}};
  CHECK(open_numbered(world, "disk", 1, 9).error == 0);
  CHECK(close_numbered(world, 0, 1, 99).error == 0);
  CHECK(open_numbered(world, "disk", 1, 1).error == 0);
}

}  // namespace open_test
