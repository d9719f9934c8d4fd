// SPDX-License-Identifier: BSD-3-Clause
// Requests that are in flight when the server was restarted, and threads that go on meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::renewal_in_flight_test {
namespace {

TEST_CASE("renewal: a request in flight reaches its device, not the one that has its id now") {
  World world;
  Device a = world.open("a");  // 7
  Device b = world.open("b");  // 8, and then 7
  std::array<std::byte, 512> block{};
  std::vector<wire::Extent> runs;
  std::vector<std::uint32_t> ids;
  world.client->after_answer = [&](const Arrival& arrival) {
    ids.push_back(rtrs::wire::copy_of<wire::Close>(arrival.message).device_id);
  };
  world.client->server.extents = {{512, 0, 0}};
  SUBCASE("a write") {
    world.restart_during(MessageType::io, 6);
    CHECK(b->write(0, block, false, {}) == 0);
    CHECK(world.client->server.written == std::vector<std::string>{"b"});
  }
  SUBCASE("a read") {
    world.restart_during(MessageType::io, 6);
    CHECK(b->read(0, block, {}) == 0);
  }
  SUBCASE("a flush") {
    world.restart_during(MessageType::io, 6);
    CHECK(b->flush({}) == 0);
  }
  SUBCASE("a question for extents") {
    world.restart_during(MessageType::block_status, 6);
    CHECK(b->extents(0, 512, 1, runs, {}) == 0);
  }
  SUBCASE("a read-ahead") {
    world.restart_during(MessageType::cache, 6);
    CHECK(b->cache(0, 512, {}) == 0);
  }
  world.client->after_answer = nullptr;
  CHECK(ids == std::vector<std::uint32_t>{7});
}

TEST_CASE("renewal: a long write goes on where it was, whatever waits for a permit") {
  World world{{.max_io_size = 4096, .slots = 2}};
  Device device = world.open("a");
  const std::vector<std::byte> data(40 * 4096, std::byte{42});
  world.restart_during(MessageType::io, 50);
  CHECK(device->write(0, data, false, {}) == 0);
  CHECK(std::equal(data.begin(), data.end(), world.client->server.disk.begin()));
  CHECK(world.client->server.written == std::vector<std::string>(40, "a"));
}

TEST_CASE(
    "renewal: what only a flush makes durable is done again, for the server may have lost it") {
  World world{{.features = rtrs::wire::kFeatureExactlyOnce}};
  world.client->server.open_response.cache_policy = wire::kCacheWriteback;
  std::vector<wire::IoOperation> done;  // before the device, whose end is heard of, too
  Device device =
      world.open("a", {.geometry = {.discard = Use::always, .write_zeroes = Use::always}});
  world.client->after_answer = [&](const Arrival& arrival) {
    done.push_back(arrival.io().operation());
  };
  const auto is_flush = [](const Arrival& arrival) {
    return arrival.io().operation() == wire::IoOperation::flush;
  };
  world.client->stalled = is_flush;
  unsigned restarts = 0;
  world.client->while_stalled = [&] {
    world.client->stalled = nullptr;
    ++restarts;
    CHECK(world.client->renew(50) == 0);
  };
  auto operation = wire::IoOperation::discard;
  SUBCASE("a write") {
    operation = wire::IoOperation::write;
    const std::vector<std::byte> data(4096);
    CHECK(device->write(0, data, /*fua=*/true, {}) == 0);
  }
  SUBCASE("a discard") { CHECK(device->discard(0, 4096, /*fua=*/true, {}) == 0); }
  SUBCASE("zeroing") {
    operation = wire::IoOperation::write_zeroes;
    CHECK(device->write_zeroes(0, 4096, {.fua = true, .may_unmap = true}, {}) == 0);
  }
  CHECK(restarts == 1);
  const auto flush = wire::IoOperation::flush;
  CHECK(done == std::vector{operation, flush, operation, flush});
}

/// Runs `change` on a device whose server is restarted while request number `last` of I/O is under
/// way, and returns the operations that were answered.
std::vector<wire::IoOperation> restart_behind(World& world, unsigned last,
                                              const std::function<int(RemoteDevice&)>& change) {
  std::vector<wire::IoOperation> done;  // before the device, whose end is heard of, too
  Device device = world.open("a");
  world.client->after_answer = [&](const Arrival& arrival) {
    if (arrival.is_io()) done.push_back(arrival.io().operation());
  };
  world.client->stalled = [&](const Arrival&) { return done.size() == last; };
  world.client->while_stalled = [&] {
    world.client->stalled = nullptr;
    std::ranges::fill(world.client->server.disk, std::byte{});
    CHECK(world.client->renew(50, 2) == 0);
  };
  CHECK(change(*device) == 0);
  CHECK(world.client->while_stalled == nullptr);
  return done;
}

TEST_CASE("renewal: what was answered of a long write is sent again, what was under way once") {
  World world{{.max_io_size = 4096, .slots = 2, .volatile_epoch = 1}};
  const std::vector<std::byte> data(40 * 4096, std::byte{42});
  unsigned answered = 0;
  SUBCASE("the first piece") { answered = 1; }
  SUBCASE("more than can be under way") { answered = 25; }
  SUBCASE("all but the last") { answered = 39; }
  const auto done = restart_behind(world, answered, [&](RemoteDevice& device) {
    return device.write(0, data, /*fua=*/false, {});
  });
  CHECK(done.size() == 40 + answered);
  CHECK(std::equal(data.begin(), data.end(), world.client->server.disk.begin()));
}

TEST_CASE("renewal: a long write that is durable piece by piece goes on where it was") {
  World world{{.max_io_size = 4096, .slots = 2, .volatile_epoch = 1}};
  const std::vector<std::byte> data(40 * 4096, std::byte{42});
  const auto done = restart_behind(
      world, 25, [&](RemoteDevice& device) { return device.write(0, data, /*fua=*/true, {}); });
  CHECK(done.size() == 40);
}

TEST_CASE("renewal: a write whose ends lie inside blocks is done in one session") {
  World world{{.volatile_epoch = 1}};
  const std::vector<std::byte> data(2048, std::byte{42});
  unsigned answered = 0;  // of the write of whole blocks and two patches, each a read and a write
  SUBCASE("behind the whole blocks") { answered = 1; }
  SUBCASE("behind the first patch") { answered = 3; }
  restart_behind(world, answered,
                 [&](RemoteDevice& device) { return device.write(100, data, false, {}); });
  CHECK(std::equal(data.begin(), data.end(), world.client->server.disk.begin() + 100));
}

TEST_CASE("renewal: requests wait while what is open cannot be opened again") {
  World world;
  Device device = world.open("a");
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  world.client->while_stalled = [&] {
    world.client->stalled = nullptr;
    world.client->server.fail = [](const Arrival&) { return EPERM; };
    CHECK(world.client->renew(20) == EPERM);
    CHECK(world.client->renew(30) == EPERM);
    world.client->server.fail = nullptr;
    CHECK(world.client->reopen() == 0);
  };
  const std::array<std::byte, 512> block{};
  CHECK(device->write(0, block, false, {}) == 0);
  CHECK(world.client->server.written == std::vector<std::string>{"a"});
}

TEST_CASE("renewal: a request in flight to a device that is another one fails") {
  World world;
  Device device = world.open("a");
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  world.client->while_stalled = [&] {
    world.client->stalled = nullptr;
    world.shrink_disk();
    CHECK(world.client->renew(7) == 0);
  };
  const std::array<std::byte, 512> block{};
  bool reaches_nothing = false;
  SUBCASE("at a server that says so") { reaches_nothing = true; }
  SUBCASE("at one that takes requests for no device") { world.client->server.has_all_ids = true; }
  CHECK(device->write(0, block, false, {}) == EIO);
  CHECK(world.client->server.executed.empty() == reaches_nothing);
}

TEST_CASE("renewal: an OPEN or device info in flight opens the device in the new session") {
  World world;
  Device other = world.open("other");
  MessageType type = MessageType::open;
  SUBCASE("OPEN") { type = MessageType::open; }
  SUBCASE("DEVICE INFO") { type = MessageType::device_info; }
  world.restart_during(type, 8);  // the id that the device had, or would have had
  auto device = world.session->open("a", {}, {});
  REQUIRE(device);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"other", 8}, {"a", 9}});
  CHECK(world.reached(**device) == "a");
  CHECK(world.reached(*other) == "other");
}

TEST_CASE("renewal: a CLOSE in flight closes nothing that is open in the new session") {
  World world;
  Device other = world.open("other");  // 7, and then 8
  Device device = world.open("a");     // 8
  world.restart_during(MessageType::close, 8);
  device.reset();
  CHECK(world.count(MessageType::close) == 2);
  CHECK(world.client->server.open == std::map<std::string, std::uint32_t>{{"other", 8}});
  CHECK(world.reached(*other) == "other");
}

TEST_CASE("renewal: a larger request than before is possible for devices opened later") {
  World world{{.max_io_size = 8192}};
  Device device = world.open("a");
  CHECK(device->geometry().max_io == 8192);
  CHECK(world.client->renew(7) == 0);
  CHECK(world.open("b")->geometry().max_io == 8192);
}

TEST_CASE("renewal: devices are opened, used and closed while the server restarts all the time") {
  constexpr int kThreads = 4;
  World world{{.volatile_epoch = 1}};
  Device witness = world.open("witness");
  world.client->shared = true;
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = t % 2 == 0 ? "shared" : "own" + std::to_string(t);
      const std::array<std::byte, 512> block{};
      while (!enough) {
        auto device = world.session->open(name, {}, {});
        CHECK(device.has_value());
        if (!device) return;
        CHECK((*device)->write(0, block, false, {}) == 0);
        const int error = (*device)->flush({});
        CHECK((error == 0 || error == EIO));
      }
    });
  }
  for (std::uint32_t i = 0; i < 300; ++i) CHECK(world.client->renew(i % 5, 1 + i) == 0);
  enough = true;
  for (auto& thread : threads) thread.join();
  CHECK(world.reached(*witness) == "witness");
  CHECK(world.client->server.open.size() == 1);
  for (const std::string& name : world.client->server.written) CHECK_FALSE(name.empty());
}

}  // namespace
}  // namespace rnbd::test::renewal_in_flight_test
