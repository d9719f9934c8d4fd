// SPDX-License-Identifier: BSD-3-Clause
// Writes that were answered but not flushed when the server's machine was restarted, or its storage
// lost.
#include <doctest/doctest.h>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::volatile_epoch_test {
namespace {

TEST_CASE("volatile epoch: the next flush fails once when answered writes may be lost") {
  World world{{.volatile_epoch = 1}};
  Device device = world.open("a");
  SUBCASE("a write") { CHECK(world.reached(*device) == "a"); }
  SUBCASE("zeroing") { CHECK(device->write_zeroes(0, 512, {}, {}) == 0); }
  SUBCASE("a discard") { CHECK(device->discard(0, 512, false, {}) == 0); }
  CHECK(world.client->renew(7, 2) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("writes to 'a' that were not flushed") != std::string::npos);
  CHECK(world.reached(*device) == "a");  // only a flush reports it
  CHECK(world.reached(*device, /*fua=*/true) == "a");
  CHECK(device->flush({}) == EIO);
  CHECK(device->flush({}) == 0);
}

TEST_CASE("volatile epoch: nothing is reported when nothing can be lost") {
  std::uint64_t before = 1;
  std::uint64_t after = 2;
  bool fua = false;
  bool flush = false;
  SUBCASE("a restart of the process alone") { after = 1; }
  SUBCASE("the epoch was not known") { before = 0; }
  SUBCASE("the epoch is not known") { after = 0; }
  SUBCASE("the write was durable by itself") { fua = true; }
  SUBCASE("the write was flushed") { flush = true; }
  World world{{.volatile_epoch = before}};
  Device device = world.open("a");
  CHECK(world.reached(*device, fua) == "a");
  if (flush) CHECK(device->flush({}) == 0);
  CHECK(world.client->renew(7, after) == 0);
  CHECK(device->flush({}) == 0);
  CHECK(world.log.empty());
}

TEST_CASE("volatile epoch: one that was not known for a session is remembered") {
  World world{{.volatile_epoch = 1}};
  Device device = world.open("a");
  CHECK(world.reached(*device) == "a");
  CHECK(world.client->renew(7, 0) == 0);
  CHECK(world.client->renew(7, 2) == 0);
  CHECK(device->flush({}) == EIO);
}

TEST_CASE("volatile epoch: a renewal that failed on the way does not hide it") {
  World world{{.volatile_epoch = 1}};
  Device device = world.open("a");
  CHECK(world.reached(*device) == "a");
  world.client->server.fail = [](const Arrival&) { return EPERM; };
  CHECK(world.client->renew(7, 2) == EPERM);
  world.client->server.fail = nullptr;
  CHECK(world.client->reopen() == 0);
  CHECK(device->flush({}) == EIO);
}

TEST_CASE("volatile epoch: everybody who uses the device is told, and nobody else") {
  World world{{.volatile_epoch = 1}};
  Device writer = world.open("a");
  Device second = world.open("a");
  Device other = world.open("b");
  CHECK(world.reached(*writer) == "a");
  CHECK(world.client->renew(7, 2) == 0);
  Device late = world.open("a");  // comes instead of one who left before it flushed
  CHECK(other->flush({}) == 0);
  CHECK(writer->flush({}) == EIO);
  CHECK(second->flush({}) == EIO);
  CHECK(late->flush({}) == EIO);
  Device later = world.open("a");
  for (const Device* device : {&writer, &second, &late, &later}) CHECK((*device)->flush({}) == 0);
}

TEST_CASE("storage life: the next flush of a device fails once when its storage was lost") {
  World world;
  const Device of_a = world.open("a");
  const Device of_b = world.open("b");
  CHECK(world.reached(*of_a) == "a");
  CHECK(world.reached(*of_b) == "b");
  // While the session was cut off the server has connected anew to what is behind `b`.
  world.client->server.fail = [&](const Arrival& arrival) {
    if (arrival.type() != MessageType::device_info) return 0;
    const std::uint32_t id = rtrs::wire::copy_of<wire::DeviceInfo>(arrival.message).device_id;
    world.client->server.device_info.storage_life = id == world.client->server.open["b"] ? 1 : 0;
    return 0;
  };
  CHECK(world.client->renew(20) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("has lost its own connection to the storage: writes to 'b'") !=
        std::string::npos);
  CHECK(of_a->flush({}) == 0);
  CHECK(of_b->flush({}) == EIO);
  CHECK(of_b->flush({}) == 0);
  // It is compared with what the last session said, not with the first.
  CHECK(world.reached(*of_b) == "b");
  CHECK(world.client->renew(30) == 0);
  CHECK(of_b->flush({}) == 0);
  CHECK(world.log.size() == 1);
}

TEST_CASE("storage life: what was flushed is not lost") {
  World world;
  const Device device = world.open("a");
  CHECK(world.reached(*device) == "a");
  CHECK(device->flush({}) == 0);
  world.client->server.device_info.storage_life = 1;
  CHECK(world.client->renew(20) == 0);
  CHECK(device->flush({}) == 0);
  CHECK(world.log.empty());
}

TEST_CASE("volatile epoch: a flush that was under way fails even if the server says success") {
  World world{{.volatile_epoch = 1}};
  Device device = world.open("a");
  CHECK(world.reached(*device) == "a");
  world.after_first(MessageType::io, [&] { CHECK(world.client->renew(7, 2) == 0); });
  CHECK(device->flush({}) == EIO);
  CHECK(device->flush({}) == 0);
}

TEST_CASE("volatile epoch: a flush that failed leaves the writes unflushed") {
  World world{{.volatile_epoch = 1}};
  Device device = world.open("a");
  CHECK(world.reached(*device) == "a");
  world.client->server.fail = [](const Arrival& arrival) { return arrival.is_io() ? ENOSPC : 0; };
  CHECK(device->flush({}) == ENOSPC);
  world.client->server.fail = nullptr;
  CHECK(world.client->renew(7, 2) == 0);
  CHECK(device->flush({}) == EIO);
}

TEST_CASE("volatile epoch: a second flush at the same time is not believed either") {
  UnflushedWrites writes;
  writes.note();
  const auto first = writes.begin_flush();
  const auto second = writes.begin_flush();
  CHECK(first.covers);
  CHECK_FALSE(second.covers);
  CHECK(writes.lose());
  std::atomic<std::uint64_t> told{0};
  CHECK(writes.end_flush(first, 0, told) == EIO);
  CHECK(writes.end_flush(second, 0, told) == EIO);
  CHECK_FALSE(writes.lose());
}

}  // namespace
}  // namespace rnbd::test::volatile_epoch_test
