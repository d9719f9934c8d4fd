// SPDX-License-Identifier: BSD-3-Clause
// A renewed session finds a device gone, or another one; the other devices go on.
#include <doctest/doctest.h>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::lost_device_test {
namespace {

TEST_CASE("renewal: a device that is another one is lost for good, and the log says why") {
  World world;
  Device device = world.open("a");
  Device same = world.open("a");
  world.shrink_disk();
  CHECK(world.client->renew(7) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("'a' is not what it was: its size was 1048576 and is 4096") == 0);
  REQUIRE(world.session->devices().size() == 1);
  CHECK(world.session->devices()[0].users == 2);
  CHECK(world.session->devices()[0].trouble.find("'a' is not what it was: its size") == 0);
  const auto lost = [&](RemoteDevice& gone) {
    std::array<std::byte, 512> block{};
    std::vector<wire::Extent> runs;
    CHECK(world.reached(gone) == "Input/output error");
    CHECK(gone.read(0, block, {}) == EIO);
    CHECK(gone.flush({}) == EIO);
    CHECK(gone.extents(0, 512, 1, runs, {}) != 0);
  };
  lost(*device);

  // It is closed by whoever comes first, and who opens it then gets what is there.
  SUBCASE("a background job") {
    CHECK(world.client->do_background_jobs() == 1);
    CHECK(world.client->server.open.empty());
  }
  SUBCASE("the next one") {}
  const Device again = world.open("a");
  CHECK(world.count(MessageType::close) == 1);
  CHECK(again->geometry().size == 4096);
  CHECK(world.reached(*again) == "a");
  REQUIRE(world.session->devices().size() == 2);
  CHECK(world.session->devices()[0].trouble.empty());
  CHECK(world.session->devices()[1].users == 2);
  device.reset();
  CHECK(world.reached(*again) == "a");
  CHECK(world.session->devices()[1].users == 1);
  CHECK(world.client->renew(30) == 0);
  CHECK(world.reached(*again) == "a");
  lost(*same);
  same.reset();
  CHECK(world.session->devices().size() == 1);
  CHECK(world.open("a")->geometry().size == 4096);
  CHECK(world.client->server.open.size() == 1);
  CHECK(world.reached(*again) == "a");
}

TEST_CASE("renewal: without the extension a device that is another one ends the session for good") {
  World world{{.features = 0}};
  const Device device = world.open("a");
  const Device other = world.open("b");
  world.shrink_disk();
  CHECK(world.client->renew(7) == ESTALE);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("'a' is not what it was: its size") == 0);
  CHECK_FALSE(world.session->alive());
  CHECK(world.reached(*device) == "Input/output error");
  CHECK(world.reached(*other) == "Input/output error");
  auto again = world.session->open("a", {}, {});
  REQUIRE_FALSE(again);
  CHECK(again.error().text.find("'a' is not what it was") == 0);
}

TEST_CASE("renewal: a device is lost even if the attempt fails that has shown it") {
  World world;
  auto& writer_serial = world.client->server.device_info.writer_serial;
  writer_serial = 0x7'0000'0004;
  const Device a = world.open("a");
  const Device b = world.open("b");
  writer_serial = 0x7'0000'0006;
  world.client->server.fail = [](const Arrival& arrival) {
    const bool is_b = arrival.type() == MessageType::open &&
                      wire::decode_open(arrival.message)->device_name == "b";
    return is_b ? EPERM : 0;
  };
  CHECK(world.client->renew(20) == EPERM);
  REQUIRE(world.log.size() == 2);
  CHECK(world.log[0].find("'a' is not what it was: another client has had it") == 0);
  CHECK(world.log[1].find("'b' (rw) again: Operation not permitted; it is tried again") !=
        std::string::npos);
  // This process of the server knows nothing of that.
  world.client->server.fail = nullptr;
  writer_serial = 0x9'0000'0001;
  CHECK(world.client->renew(30) == 0);
  CHECK(world.reached(*a) == "Input/output error");
  CHECK(world.reached(*b) == "b");
}

TEST_CASE("renewal: who opens a device while it is lost gets what is there now") {
  World world;
  const Device before = world.open("a");
  world.after_first(MessageType::device_info, [&] {
    world.shrink_disk();
    CHECK(world.client->renew(20) == 0);
  });
  const Device now = world.open("a");
  CHECK(now->geometry().size == 4096);
  CHECK(world.reached(*now) == "a");
  CHECK(world.reached(*before) == "Input/output error");
}

TEST_CASE("renewal: the other devices of the session go on without one that is lost") {
  World world;
  const Device a = world.open("a");
  const Device b = world.open("b");
  const Device c = world.open("c");
  world.client->server.fail = [](const Arrival& arrival) {
    const bool is_b = arrival.type() == MessageType::open &&
                      wire::decode_open(arrival.message)->device_name == "b";
    return is_b ? ENOENT : 0;
  };
  CHECK(world.client->renew(20) == 0);
  CHECK(world.log == std::vector<std::string>{"'b' (rw) is gone from the server; those who have it "
                                              "open get EIO until they open it anew"});
  CHECK(world.reached(*a) == "a");
  CHECK(world.reached(*b) == "Input/output error");
  CHECK(world.reached(*c) == "c");
}

TEST_CASE("renewal: a device that turns out to be another one when its user has left is closed") {
  World world;
  Device device = world.open("a");
  const Device other = world.open("b");
  world.shrink_disk();
  bool ends = false;
  SUBCASE("when a path is back") {}
  SUBCASE("by the end of the session, if the program ends") { ends = true; }
  world.client->server.fail = [&](const Arrival& arrival) {
    if (arrival.type() != MessageType::session_info) return 0;
    world.client->connected = false;
    if (ends) world.session->leave();
    device.reset();
    return 0;
  };
  CHECK(world.client->renew(30) == 0);
  world.client->server.fail = nullptr;
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("'b' is not what it was") == 0);
  world.client->come_back();
  CHECK(world.client->server.open.count("a") == (ends ? 1 : 0));
  CHECK(world.client->server.open.count("b") == 0);
  const auto left = world.session->devices();
  REQUIRE(left.size() == 1);
  CHECK(left[0].name == "b");
  CHECK_FALSE(left[0].trouble.empty());
}

TEST_CASE("renewal: another writer is noticed where the server's records begin anew") {
  World world;
  auto& writer_serial = world.client->server.device_info.writer_serial;
  AccessMode access = AccessMode::read_write;
  SUBCASE("for itself") {}
  SUBCASE("while a machine migrates") { access = AccessMode::migration; }
  writer_serial = 0x7'0000'0004;
  std::uint64_t now = 0x9'0000'0002;
  bool lost = true;
  SUBCASE("it came first") {}
  SUBCASE("nobody came before this one") {
    now = 0x9'0000'0001;
    lost = false;
  }
  SUBCASE("it came first, and the server did not say before") { writer_serial = 0; }
  SUBCASE("the server does not say any more") {
    now = 0;
    lost = false;
  }
  const Device device = world.open("a", {.access = access});
  writer_serial = now;
  CHECK(world.client->renew(20) == 0);
  CHECK(world.reached(*device) == (lost ? "Input/output error" : "a"));
  REQUIRE(world.log.size() == (lost ? 1 : 0));
  if (lost) CHECK(world.log[0].find("began its records anew") != std::string::npos);
}

TEST_CASE("renewal: both go on that migrate when the server has kept its records") {
  World world;
  world.client->server.device_info.writer_serial = 0x7'0000'0004;
  const Device device = world.open("a", {.access = AccessMode::migration});
  CHECK(world.client->renew(20) == 0);
  CHECK(world.reached(*device) == "a");
  CHECK(world.log.empty());
}

TEST_CASE("renewal: a device that the operator has closed is lost, and the reason is told") {
  World world;
  auto& info = world.client->server.device_info;
  info.writer_serial = 0x7'0000'0004;
  Device device = world.open("a");
  info.writer_serial = 0x7'0000'0006;
  info.flags = info.flags | wire::kDeviceEvicted;
  CHECK(world.client->renew(20) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("'a' is not what it was: the server's operator has closed it") == 0);
}

TEST_CASE("renewal: another writer is noticed in every life of the server") {
  World world;
  auto& writer_serial = world.client->server.device_info.writer_serial;
  writer_serial = 0x7'0000'0004;
  Device device = world.open("a");
  writer_serial = 0x9'0000'0001;
  CHECK(world.client->renew(20) == 0);
  CHECK(world.client->renew(30) == 0);
  CHECK(world.log.empty());
  writer_serial = 0x9'0000'0003;
  CHECK(world.client->renew(40) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("another client has had it open for writing") != std::string::npos);
}

}  // namespace
}  // namespace rnbd::test::lost_device_test
