// SPDX-License-Identifier: BSD-3-Clause
// Devices that become larger while a session has them open.
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::growth_test {
namespace {

constexpr std::uint64_t kSize = 1 << 20;
constexpr std::uint64_t kLarger = 2 << 20;

/// The server has grown the disk, and tells so whoever asks.
void enlarge(World& world, std::uint64_t size = kLarger) {
  FakeServer& server = world.client->server;
  server.disk.resize((size + 511) / 512 * 512);
  server.open_response.sectors = server.disk.size() / 512;
  server.device_info.size = size;
}

std::uint64_t size_of(const Device& device) { return device->geometry().size; }

int read_at(const Device& device, std::uint64_t offset) {
  std::array<std::byte, 512> block{};
  return device->read(offset, block, {});
}

int write_at(const Device& device, std::uint64_t offset) {
  const std::array<std::byte, 512> block{};
  return device->write(offset, block, false, {});
}

TEST_CASE("growth: who comes later has the present size, who was there keeps his own") {
  World world;
  const Device before = world.open("a");
  enlarge(world);
  const Device after = world.open("a");
  CHECK(world.count(MessageType::open) == 1);
  CHECK(size_of(before) == kSize);
  CHECK(size_of(after) == kLarger);
  CHECK(read_at(after, kSize) == 0);
  CHECK(write_at(after, kLarger - 512) == 0);
  CHECK(read_at(before, kSize) == EINVAL);
  CHECK(write_at(before, kSize) == EINVAL);
  CHECK(read_at(before, kSize - 512) == 0);
  Transfer transfer{.operation = wire::IoOperation::read, .offset = kSize, .length = 512};
  RemoteDevice::Begun begun;
  CHECK(before->begin(transfer, begun) == EINVAL);
  CHECK(after->begin(transfer, begun) == 0);
  REQUIRE(world.session->devices().size() == 1);
  CHECK(world.session->devices()[0].size == kLarger);
}

TEST_CASE("growth: who has sent nothing yet may look again") {
  World world;
  const Device device = world.open("a");
  enlarge(world);
  CHECK(size_of(device) == kSize);
  REQUIRE(device->look_again({}));
  CHECK(size_of(device) == kLarger);
  CHECK(read_at(device, kLarger - 512) == 0);
}

TEST_CASE("growth: a size that is smaller, or whose end was inside a block, stays") {
  std::size_t disk_size = kSize;
  std::uint64_t size = 4096;
  SUBCASE("smaller") {}
  SUBCASE("odd") {
    disk_size = kSize - 100;
    size = kLarger;
  }
  World world{{.disk_size = disk_size}};
  const Device before = world.open("a");
  world.client->server.device_info.size = size;
  const Device after = world.open("a");
  CHECK(size_of(after) == disk_size);
}

TEST_CASE("growth: that the storage has become too small is known from the next look on") {
  World world;
  const Device device = world.open("a");
  CHECK_FALSE(world.session->devices()[0].shrunk);
  world.client->server.device_info.flags = wire::kDeviceShrunk;
  REQUIRE(device->look_again({}));
  CHECK(world.session->devices()[0].shrunk);
  CHECK(world.session->devices()[0].size == kSize);
  world.client->server.device_info.flags = 0;
  REQUIRE(device->look_again({}));
  CHECK_FALSE(world.session->devices()[0].shrunk);
}

TEST_CASE("growth: who only observes the size is no user for people") {
  World world;
  const Device device = world.open("a");
  {
    const Device observer = world.open("a");
    CHECK(world.session->devices()[0].users == 2);
    observer->only_observe();
    CHECK(world.session->devices()[0].users == 1);
  }
  CHECK(world.session->devices()[0].users == 1);
}

TEST_CASE("growth: a server without the extension is not asked") {
  World world{{.features = 0}};
  const Device before = world.open("a");
  enlarge(world);
  const Device after = world.open("a");
  CHECK(size_of(after) == kSize);
  CHECK(world.count(MessageType::device_info) == 0);
}

TEST_CASE("growth: nobody is kept out by a server that does not answer") {
  World world;
  const Device before = world.open("a");
  enlarge(world);
  FakeClient& client = *world.client;
  SUBCASE("for want of a path") { client.connected = false; }
  SUBCASE("because the last path dies meanwhile") {
    client.stalled = [](const Arrival&) { return true; };
    client.while_stalled = [&] { client.connected = false; };
  }
  SUBCASE("but fails") {
    client.server.fail = [](const Arrival&) { return EIO; };
  }
  const Device after = world.open("a");
  CHECK(size_of(after) == kSize);
}

TEST_CASE("growth: who leaves while the size is asked is no user of the device any more") {
  World world;
  Device before = world.open("a");
  world.client->stalled = [](const Arrival&) { return true; };
  const auto left = world.session->open("a", {}, {&leave_now, nullptr});
  REQUIRE_FALSE(left);
  CHECK(left.error().error == EINTR);
  CHECK(world.session->devices()[0].users == 1);
}

TEST_CASE("growth: an answer that makes no sense is said") {
  World world;
  const Device before = world.open("a");
  world.client->server.device_info.header.type = 77;
  const auto after = world.session->open("a", {}, {});
  REQUIRE_FALSE(after);
  CHECK(after.error().error == EPROTO);
  CHECK(world.session->devices()[0].users == 1);
}

TEST_CASE("growth: a question that a restart meets is asked the new session") {
  World world;
  world.client->server.device_info.export_uuid = {1};
  world.client->server.device_info.server_life = 7;
  const Device before = world.open("a");
  world.client->stalled = [](const Arrival& arrival) {
    return arrival.type() == MessageType::device_info;
  };
  world.client->while_stalled = [&] {
    world.client->stalled = nullptr;
    enlarge(world);
    CHECK(world.client->renew(40) == 0);
  };
  const Device after = world.open("a");
  CHECK(size_of(after) == kLarger);
  CHECK(world.reached(*after) == "a");
}

TEST_CASE("growth: a session is renewed with a device that a server has grown meanwhile") {
  World world;
  world.client->server.device_info.export_uuid = {1};
  world.client->server.device_info.server_life = 7;
  const Device before = world.open("a");
  enlarge(world);
  SUBCASE("in the same life of the server") {
    CHECK(world.client->renew(20) == 0);
    CHECK(size_of(before) == kSize);
    CHECK(world.reached(*before) == "a");
    CHECK(size_of(world.open("a")) == kLarger);
    CHECK(world.client->renew(30) == 0);
  }
  SUBCASE("in another life, when somebody has been told of it") {
    world.open("a");
    world.client->server.device_info.server_life = 9;
    CHECK(world.client->renew(20) == 0);
    CHECK(size_of(before) == kSize);
    CHECK(world.reached(*before) == "a");
  }
  SUBCASE("but not in another life, when nobody has") {
    world.client->server.device_info.server_life = 9;
    CHECK(world.client->renew(20) == 0);
    CHECK(world.reached(*before) == "Input/output error");
  }
  SUBCASE("but not when it has shrunk again") {
    world.open("a");
    enlarge(world, kSize);
    CHECK(world.client->renew(20) == 0);
    CHECK(world.reached(*before) == "Input/output error");
  }
}

}  // namespace
}  // namespace rnbd::test::growth_test
