// SPDX-License-Identifier: BSD-3-Clause
// A session and its devices after the server was restarted.
#include <doctest/doctest.h>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::renewal_test {
namespace {

TEST_CASE("renewal: open devices go on under their new ids, even when those changed hands") {
  World world;
  Device a = world.open("a");
  Device b = world.open("b");
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"a", 7}, {"b", 8}});
  CHECK(world.client->renew(8) == 0);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"a", 8}, {"b", 9}});
  CHECK(world.reached(*a) == "a");
  CHECK(world.reached(*b) == "b");
  CHECK(world.client->renew(6) == 0);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"a", 6}, {"b", 7}});
  CHECK(world.reached(*a) == "a");
  CHECK(world.reached(*b) == "b");
  a.reset();
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"b", 7}});
  CHECK(world.log.empty());
}

TEST_CASE("renewal: requests beside block I/O name the new id, too") {
  World world;
  Device device = world.open("a");
  REQUIRE(world.client->renew(100) == 0);
  std::vector<std::uint32_t> ids;
  world.client->after_answer = [&](const Arrival& arrival) {
    ids.push_back(rtrs::wire::copy_of<wire::Close>(arrival.message).device_id);
  };
  std::vector<wire::Extent> runs;
  world.client->server.extents = {{512, 0, 0}};
  CHECK(device->extents(0, 512, 1, runs, {}) == 0);
  CHECK(device->cache(0, 512, {}) == 0);
  CHECK(device->flush({}) == 0);
  device.reset();
  CHECK(ids == std::vector<std::uint32_t>{100, 100, 100, 100});
}

TEST_CASE("renewal: a device that cannot be had yet is asked for again, and said once") {
  World world;
  Device device = world.open("a");
  world.client->server.fail = [](const Arrival& arrival) {
    return arrival.type() == MessageType::open ? EPERM : 0;
  };
  CHECK(world.client->renew(20) == EPERM);
  CHECK(world.client->reopen() == EPERM);
  CHECK(world.session->alive());
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("'a' (rw) again: Operation not permitted") != std::string::npos);
  world.client->server.fail = nullptr;
  CHECK(world.client->reopen() == 0);
  CHECK(world.reached(*device) == "a");
}

TEST_CASE(
    "renewal: each attempt has numbers of its own, says that it comes again, and ends the last") {
  World world;
  Device device = world.open("a");
  struct Asked {
    std::uint32_t number;
    std::uint32_t settled;
    bool again;
    bool operator==(const Asked&) const = default;
  };
  std::vector<Asked> asked;
  world.client->server.fail = [&](const Arrival& arrival) {
    if (arrival.type() != MessageType::open) return 0;
    const wire::OpenOrder order = wire::order_of(arrival.message, sizeof(wire::Open));
    const auto open = wire::decode_open(arrival.message);
    asked.push_back({order.number, order.settled, open->flags == wire::kOpenAgain});
    return asked.size() == 1 ? EPERM : 0;
  };
  CHECK(world.client->renew(20) == EPERM);
  CHECK(world.client->reopen() == 0);
  const Device other = world.open("b");
  CHECK(asked == std::vector<Asked>{{2, 2, true}, {3, 3, true}, {4, 4, false}});
}

TEST_CASE("renewal: what nobody uses is not opened again") {
  World world;
  Device device = world.open("a");
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::array<std::byte, 512> block{};
  CHECK(device->read(0, block, {&leave_now, nullptr}) == EINTR);
  device.reset();  // stays open, for the sake of the read
  world.client->stalled = nullptr;
  world.client->server.answer_all();
  CHECK(world.count(MessageType::close) == 0);
  CHECK(world.client->renew(30) == 0);
  CHECK(world.client->server.open.empty());
  device = world.open("a");
  CHECK(world.reached(*device) == "a");
}

TEST_CASE("renewal: what a server without the extension may have open still is closed there") {
  World world{{.features = rtrs::wire::kFeatureUserMessages}};
  Device device = world.open("a");
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::array<std::byte, 512> block{};
  CHECK(device->read(0, block, {&leave_now, nullptr}) == EINTR);
  device.reset();
  world.client->stalled = nullptr;
  world.client->server.answer_all();
  CHECK(world.client->renew(30) == 0);
  device = world.open("a", {.access = AccessMode::read_only});
  CHECK(world.count(MessageType::close) == 1);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"a", 31}});
}

/// A late message for another device would reach it under its new id.
TEST_CASE("renewal: without numbers nothing is opened only to be closed, but closed by its name") {
  World world{{.features = 0}};
  Device other = world.open("other");  // 7
  Device device = world.open("a");     // 8
  world.client->connected = false;
  device.reset();
  auto& open = world.client->server.open;
  SUBCASE("the server has forgotten both") { CHECK(world.client->renew(30) == 0); }
  SUBCASE("the server has the session still") {
    const auto kept = open;
    world.client->server.after_restart = [&] { open = kept; };
    CHECK(world.client->renew(30) == 0);
  }
  CHECK(world.count(MessageType::open) == 3);  // the third is of the other, which is in use
  const std::uint32_t id = open.at("other");
  CHECK(world.client->come_back() == 1);
  CHECK(world.count(MessageType::open) == 4);
  CHECK(world.count(MessageType::close) == 1);
  CHECK(open == std::map<std::string, std::uint32_t>{{"other", id}});
  CHECK(world.reached(*other) == "other");
}

/// It had no id any more.
TEST_CASE("renewal: without numbers the answer to an old CLOSE is not believed") {
  World world{{.features = 0}};
  Device device = world.open("a");  // 7
  auto& open = world.client->server.open;
  const auto kept = open;
  world.client->server.after_restart = [&] { open = kept; };
  SUBCASE("of one who waits for it") {
    world.restart_during(MessageType::close, 30);
    device.reset();
  }
  SUBCASE("of a background job") {
    world.client->connected = false;
    device.reset();
    world.restart_during(MessageType::close, 30);
    CHECK(world.client->come_back() == 2);
  }
  CHECK(open.empty());
  CHECK(world.client->come_back() == 0);
  device = world.open("a");
  CHECK(open.size() == 1);
}

TEST_CASE(
    "renewal: what an attempt opened that failed is closed when its user has left meanwhile") {
  World world;
  Device device = world.open("a");
  Device other = world.open("b");
  world.client->server.fail = [](const Arrival& arrival) {
    const bool is_open = arrival.type() == MessageType::open;
    return is_open && wire::decode_open(arrival.message)->device_name == "b" ? EPERM : 0;
  };
  CHECK(world.client->renew(30) == EPERM);
  REQUIRE(world.client->server.open == std::map<std::string, std::uint32_t>{{"a", 30}});
  world.client->connected = false;
  device.reset();
  world.client->server.fail = nullptr;
  CHECK(world.client->reopen() == 0);
  world.client->come_back();
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"b", 31}});
}

TEST_CASE("renewal: a device keeps its access mode") {
  World world;
  Device device = world.open("a", {.access = AccessMode::read_only, .export_read_only = true});
  std::vector<AccessMode> modes;
  world.client->server.fail = [&](const Arrival& arrival) {
    if (arrival.type() == MessageType::open) {
      modes.push_back(wire::decode_open(arrival.message)->mode);
    }
    return 0;
  };
  CHECK(world.client->renew(7) == 0);
  CHECK(modes == std::vector{AccessMode::read_only});
  CHECK(device->read_only());
}

TEST_CASE("renewal: an OPEN that was answered in the session before is asked again") {
  World world;
  Device other = world.open("other");
  std::uint32_t first = 0;
  SUBCASE("its id belongs to another device now") { first = 8; }
  SUBCASE("its id belongs to nobody now") { first = 50; }
  SUBCASE("its id is the same by chance") { first = 7; }
  world.after_first(MessageType::open, [&] { CHECK(world.client->renew(first) == 0); });
  Device device = world.open("a");  // was 8
  CHECK(world.reached(*device) == "a");
  CHECK(world.reached(*other) == "other");
  CHECK(world.client->server.open.size() == 2);
}

TEST_CASE("renewal: an OPEN that is asked again and given up leaves nothing open") {
  World world;
  // The first one waits for the new session, opens the device there, and is not believed.
  world.restart_during(MessageType::open, 7);
  bool leave = false;
  world.client->after_answer = [&](const Arrival& arrival) {
    if (arrival.type() != MessageType::open || leave) return;
    leave = true;
    world.client->stalled = [](const Arrival& next) { return next.type() == MessageType::open; };
  };
  const auto asked = [](void* context) { return *static_cast<bool*>(context); };
  auto opened = world.session->open("a", {}, {asked, &leave});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == EINTR);
  CHECK(leave);
  world.client->stalled = nullptr;
  world.client->server.answer_all();
  CHECK(world.client->come_back() == 1);
  CHECK(world.client->server.open.empty());
}

TEST_CASE("renewal: a device info that was answered in the session before is asked again") {
  World world;
  world.after_first(MessageType::device_info, [&] { CHECK(world.client->renew(50) == 0); });
  Device device = world.open("a");
  CHECK(world.client->server.open.at("a") == 50);
  CHECK(world.reached(*device) == "a");
  CHECK(world.count(MessageType::open) == 2);
}

TEST_CASE("renewal: a CLOSE that was answered in the session before does not disturb the next") {
  World world;
  Device other = world.open("other");
  Device device = world.open("a");
  world.after_first(MessageType::close, [&] { CHECK(world.client->renew(8) == 0); });
  device.reset();
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"other", 8}});
  CHECK(world.reached(*other) == "other");
  device = world.open("a");
  CHECK(world.reached(*device) == "a");
}

TEST_CASE("a CLOSE that nobody answered is sent again before the device is opened anew") {
  World world;
  Device device = world.open("a");
  world.client->stalled = [](const Arrival&) { return true; };
  device.reset();
  CHECK(world.count(MessageType::close) == 1);
  world.client->stalled = nullptr;
  SUBCASE("in the same session") {
    device = world.open("a");
    CHECK(world.count(MessageType::close) == 2);
  }
  SUBCASE("but not in another one") {
    world.client->server.answer_all();
    CHECK(world.client->renew(9) == 0);
    device = world.open("a");
    CHECK(world.count(MessageType::close) == 1);
  }
  CHECK(world.count(MessageType::open) == 2);
  CHECK(world.reached(*device) == "a");
}

}  // namespace
}  // namespace rnbd::test::renewal_test
