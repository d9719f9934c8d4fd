// SPDX-License-Identifier: BSD-3-Clause
// When a device is closed whose requests, or whose CLOSE, nobody waits for any more.
#include <doctest/doctest.h>

#include <array>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::closing_test {
namespace {

using Block = std::array<std::byte, 512>;

/// Leaves a request of that type unanswered while `ask` makes it.
void unanswered(World& world, MessageType type, const std::function<void()>& ask) {
  world.client->stalled = [type](const Arrival& arrival) { return arrival.type() == type; };
  ask();
  world.client->stalled = nullptr;
}

void give_up_read(World& world, RemoteDevice& device) {
  Block block{};
  unanswered(world, MessageType::io, [&] {
    CHECK(device.read(0, block, {&leave_now, nullptr}) == EINTR);
  });
}

TEST_CASE("a device with reads given up stays open for the next one who asks") {
  World world;
  auto device = *world.session->open("disk0", {}, {});
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::array<std::byte, 512> block{};
  CHECK(device->read(0, block, {&leave_now, nullptr}) == EINTR);
  device.reset();
  CHECK(world.client->server.count(MessageType::close) == 0);
  world.client->stalled = nullptr;
  device = *world.session->open("disk0", {}, {});
  CHECK(world.client->server.count(MessageType::open) == 1);
  CHECK(device->read(0, block, {}) == 0);
}

TEST_CASE("a device with a change given up is finished with before the next one gets it") {
  World world;
  auto device = *world.session->open("disk0", {}, {});
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  const std::array<std::byte, 512> block{};
  SUBCASE("a write") { CHECK(device->write(0, block, false, {&leave_now, nullptr}) == EINTR); }
  SUBCASE("zeroing") { CHECK(device->write_zeroes(0, 512, {}, {&leave_now, nullptr}) == EINTR); }
  SUBCASE("a discard") { CHECK(device->discard(0, 512, false, {&leave_now, nullptr}) == EINTR); }
  // Another host should not have to wait until somebody here opens it again.
  device.reset();
  CHECK(world.client->server.count(MessageType::close) == 1);
  // The fake server could not answer that, behind the change.
  world.client->stalled = nullptr;
  device = *world.session->open("disk0", {}, {});
  CHECK(world.client->server.count(MessageType::close) == 2);
  CHECK(world.client->server.count(MessageType::open) == 2);
}

TEST_CASE("a device with reads given up is closed before it is opened in another mode") {
  World world;
  const OpenOptions readers{.access = AccessMode::read_only};
  auto device = *world.session->open("disk0", readers, {});
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::array<std::byte, 512> block{};
  CHECK(device->read(0, block, {&leave_now, nullptr}) == EINTR);
  device.reset();

  world.client->stalled = [](const Arrival&) { return true; };
  auto failed = world.session->open("disk0", {}, {&leave_now, nullptr});
  REQUIRE_FALSE(failed);
  CHECK(failed.error().error == EINTR);
  CHECK(world.client->server.count(MessageType::close) == 1);

  world.client->stalled = nullptr;
  CHECK(world.session->open("disk0", {}, {}).has_value());
  CHECK(world.client->server.count(MessageType::close) >= 2);
  CHECK(world.client->server.count(MessageType::open) == 2);
}

TEST_CASE("a device that was released while no path stood is closed when one is back") {
  World world;
  auto device = *world.session->open("disk0", {}, {});
  auto other = *world.session->open("other", {}, {});
  std::array<std::byte, 512> block{};
  SUBCASE("idle") {}
  SUBCASE("with requests that were given up") {
    world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
    CHECK(device->read(0, block, {&leave_now, nullptr}) == EINTR);
    CHECK(device->write(0, block, false, {&leave_now, nullptr}) == EINTR);
    world.client->stalled = nullptr;
    world.client->server.answer_all();
  }
  world.client->connected = false;
  device.reset();
  CHECK(world.client->server.count(MessageType::close) == 0);
  CHECK(world.client->come_back() == 1);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"other", 8}});
  CHECK(world.client->come_back() == 0);
  CHECK(other->read(0, block, {}) == 0);
}

TEST_CASE("a CLOSE to be repeated closes no other device that has got the id meanwhile") {
  World world{{.features = 0}};
  auto device = *world.session->open("disk0", {}, {});
  world.client->connected = false;
  device.reset();
  auto& open = world.client->server.open;
  const std::uint32_t id = open.at("disk0");
  SUBCASE("the server has closed it and given the id away") {
    open = {{"other", id}};
    SUBCASE("when a path is back") { CHECK(world.client->come_back() == 1); }
    SUBCASE("when it is opened again first") {
      world.client->connected = true;
      device = *world.session->open("disk0", {}, {});
      CHECK(world.count(MessageType::close) == 1);
      CHECK(open.size() == 2);
      device.reset();
    }
    CHECK(open == std::map<std::string, std::uint32_t>{{"other", id}});
  }
  SUBCASE("the server has it open still") {
    CHECK(world.client->come_back() == 1);
    CHECK(open.empty());
  }
  SUBCASE("the server does not let it be opened any more") {
    world.client->server.fail = [](const Arrival&) { return ENOENT; };
    CHECK(world.client->come_back() == 1);
    CHECK(world.client->come_back() == 0);
  }
}

TEST_CASE("a device that was left with a read under way is closed when that has ended") {
  World world;
  Device device = world.open("disk0");
  give_up_read(world, *device);
  device.reset();
  CHECK(world.client->do_background_jobs() == 0);
  SUBCASE("answered") {
    world.client->server.answer_all();
    CHECK(world.client->do_background_jobs() == 1);
    CHECK(world.client->server.open.empty());
    CHECK(world.client->do_background_jobs() == 0);
  }
  SUBCASE("its path is dead") {
    world.client->server.lane.detach(0);
    world.client->server.arrivals.clear();
    world.client->server.attach(world.client->server.lane);
    CHECK(world.client->do_background_jobs() == 1);
    CHECK(world.client->server.open.empty());
  }
  SUBCASE("but not while it has a user again") {
    device = world.open("disk0");
    world.client->server.answer_all();
    CHECK(world.client->do_background_jobs() == 0);
    CHECK(world.count(MessageType::open) == 1);
  }
}

TEST_CASE("what was given up long ago does not keep a device open") {
  World world;
  Device device = world.open("disk0");
  give_up_read(world, *device);
  world.client->server.answer_all();
  device.reset();
  CHECK(world.count(MessageType::close) == 1);
  CHECK(world.client->server.open.empty());
}

TEST_CASE("a read that was never sent does not keep a device open") {
  World world{{.slots = 1}};
  Device slow = world.open("slow");
  Device device = world.open("disk0");
  give_up_read(world, *slow);  // has the permit
  give_up_read(world, *device);
  world.client->server.answer_all();
  device.reset();
  CHECK(world.count(MessageType::close) == 1);
}

TEST_CASE("a CLOSE that was given up is repeated when nothing of the device is under way") {
  World world;
  Device device = world.open("disk0");
  unanswered(world, MessageType::close, [&] { device.reset(); });
  CHECK(world.client->do_background_jobs() == 0);  // the server is still at the first
  world.client->server.answer_all();
  CHECK(world.client->do_background_jobs() == 1);
  CHECK(world.client->server.open.empty());
}

TEST_CASE("a device whose CLOSE the server is still at keeps no other one open") {
  World world;
  Device slow = world.open("a");
  Device device = world.open("b");
  unanswered(world, MessageType::close, [&] { slow.reset(); });
  world.client->connected = false;
  device.reset();
  world.client->connected = true;
  const auto background_job = world.client->recovery->background_job();
  REQUIRE(background_job);
  CHECK(world.client->run(*background_job, {}) == 0);  // behind the answer to the first CLOSE
  world.client->recovery->background_job_ended(*background_job);
  CHECK(world.count(MessageType::close) == 2);
  CHECK(world.client->server.open.empty());
}

TEST_CASE(
    "a background job that was given up is not believed, and repeated when the CLOSE has ended") {
  World world;
  Device device = world.open("disk0");
  world.client->connected = false;
  device.reset();
  world.client->connected = true;
  const auto slow = world.client->recovery->background_job();
  REQUIRE(slow);
  slow->start(world.client->server.lane);
  slow->cancel(world.client->server.lane);
  world.client->recovery->background_job_ended(*slow);
  CHECK(world.client->do_background_jobs() == 0);
  world.client->server.answer_all();
  CHECK(world.client->do_background_jobs() == 1);
}

TEST_CASE("a CLOSE that was never sent is repeated when there is a permit") {
  World world{{.slots = 1}};
  Device slow = world.open("slow");
  Device device = world.open("disk0");
  give_up_read(world, *slow);  // has the permit
  world.client->stalled = [](const Arrival&) { return true; };
  device.reset();
  CHECK(world.count(MessageType::close) == 0);
  world.client->stalled = nullptr;
  CHECK(world.client->do_background_jobs() == 1);
  CHECK_FALSE(world.client->server.open.contains("disk0"));
}

}  // namespace
}  // namespace rnbd::test::closing_test
