#include "bridge/client/remote_device.hpp"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "tests/unit/client/fake_client.hpp"

using rnbd::RemoteDevice;
using rnbd::Session;
using rnbd::test::Arrival;
using rnbd::test::FakeClient;
using rnbd::test::FakeOptions;
using rnbd::wire::AccessMode;
using rnbd::wire::IoOperation;
using rnbd::wire::MessageType;

namespace {

constexpr FakeOptions kSmall{.max_io_size = 16384, .slots = 8, .disk_size = 64 * 1024};

/// A device of a fake server, with the shape that a test wants.
struct World {
  explicit World(const FakeOptions& options = kSmall,
                 const std::function<void(FakeClient&)>& prepare = nullptr,
                 const rnbd::OpenOptions& open = {}) {
    auto made = std::make_unique<FakeClient>(options);
    client = made.get();
    if (prepare) prepare(*client);
    auto started = Session::start(std::move(made), {});
    REQUIRE(started);
    session = *started;
    auto opened = session->open("disk0", open, {});
    REQUIRE(opened);
    device = std::move(*opened);
    client->server.executed.clear();
  }
  std::vector<IoOperation> operations() const {
    std::vector<IoOperation> all;
    for (const auto& io : client->server.executed) all.push_back(io.operation());
    return all;
  }
  FakeClient* client;
  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteDevice> device;
};

void large_blocks(FakeClient& client) { client.server.open_response.logical_block_size = 4096; }

bool leave_now(void*) { return true; }

std::vector<std::byte> filled(std::size_t size, unsigned seed) {
  std::mt19937 random{seed};
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("any mix of unaligned reads, writes and zeroes behaves like memory") {
  for (std::uint16_t block : {512, 4096}) {
    for (std::size_t size : {64U * 1024U, 64U * 1024U - 3U, 61U * 1024U + 1U, 513U}) {
      CAPTURE(block);
      CAPTURE(size);
      FakeOptions options = kSmall;
      options.disk_size = size;
      World world{options, [&](FakeClient& client) {
                    client.server.open_response.logical_block_size = block;
                  }};
      REQUIRE(world.device->geometry().size == size);
      std::vector<std::byte> model(size);
      std::mt19937 random{42};
      for (int step = 0; step < 300; ++step) {
        const std::uint64_t offset = random() % size;
        const std::uint64_t length = 1 + random() % std::min<std::uint64_t>(size - offset, 20000);
        auto* place = model.data() + offset;
        if (step % 3 == 0) {
          const auto data = filled(length, random());
          std::memcpy(place, data.data(), length);
          REQUIRE(world.device->write(offset, data, step % 2 == 0, {}) == 0);
        } else if (step % 3 == 1) {
          std::memset(place, 0, length);
          REQUIRE(world.device->write_zeroes(offset, length, {.may_unmap = step % 2 == 0}, {}) ==
                  0);
        }
        std::vector<std::byte> back(length);
        REQUIRE(world.device->read(offset, back, {}) == 0);
        REQUIRE(std::memcmp(back.data(), place, length) == 0);
      }
      REQUIRE(std::memcmp(world.client->server.disk.data(), model.data(), size) == 0);
      CHECK(world.client->server.complaint == nullptr);
    }
  }
}

TEST_CASE("an aligned write is one request, an unaligned one a read and a write") {
  World world{kSmall, large_blocks};
  const auto data = filled(8192, 1);
  CHECK(world.device->write(4096, {data.data(), 4096}, false, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write});
  world.client->server.executed.clear();
  CHECK(world.device->write(512, {data.data(), 512}, false, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::read, IoOperation::write});
}

TEST_CASE("FUA reaches every request of an unaligned write") {
  World world{kSmall, large_blocks};
  const auto data = filled(12288, 1);
  CHECK(world.device->write(2048, data, true, {}) == 0);
  for (const auto& io : world.client->server.executed) {
    if (io.operation() == IoOperation::write) CHECK((io.rw & rnbd::wire::kIoFua) != 0);
  }
}

TEST_CASE("a server without FUA gets a flush after the write instead") {
  FakeOptions options = kSmall;
  options.features = 0;
  World world{options, [](FakeClient& client) {
                client.server.open_response.cache_policy = rnbd::wire::kCacheWriteback;
              }};
  const auto data = filled(512, 1);
  CHECK(world.device->write(0, data, true, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write, IoOperation::flush});
  CHECK(world.client->server.executed[0].rw == 0x001);
}

TEST_CASE("a change of a device opened ro is refused without asking the server") {
  World world{kSmall, nullptr, {.access = AccessMode::read_only}};
  const auto data = filled(512, 1);
  CHECK(world.device->write(0, data, false, {}) == EROFS);
  CHECK(world.device->discard(0, 512, false, {}) == EROFS);
  CHECK(world.device->write_zeroes(0, 512, {}, {}) == EROFS);
  CHECK(world.client->server.executed.empty());
}

TEST_CASE("an export that is read-only itself makes the device read-only") {
  World world{kSmall, [](FakeClient& client) {
                client.server.device_info.flags = rnbd::wire::kDeviceReadOnly;
              }};
  CHECK(world.device->read_only());
}

TEST_CASE("a range outside the device is refused") {
  World world;
  std::vector<std::byte> data(512);
  CHECK(world.device->read(64 * 1024, data, {}) == EINVAL);
  CHECK(world.device->read(64 * 1024 - 511, data, {}) == EINVAL);
  CHECK(world.device->write(UINT64_MAX, data, false, {}) == EINVAL);
  CHECK(world.device->discard(0, UINT64_MAX, false, {}) == EINVAL);
  CHECK(world.device->read(64 * 1024, {}, {}) == 0);
}

TEST_CASE("the server's errno reaches the caller, whatever the shape of the request") {
  World world{kSmall, large_blocks};
  const auto data = filled(12000, 1);
  std::vector<std::byte> back(12000);
  for (int error : {EIO, ENOSPC, EREMOTEIO}) {
    world.client->server.fail = [error](const Arrival&) { return error; };
    CHECK(world.device->write(100, data, false, {}) == error);
    CHECK(world.device->write(0, {data.data(), 4096}, false, {}) == error);
    CHECK(world.device->write(10, {data.data(), 10}, false, {}) == error);
    CHECK(world.device->read(100, back, {}) == error);
    CHECK(world.device->flush({}) == error);
    CHECK(world.device->discard(0, 8192, false, {}) == error);
    CHECK(world.device->write_zeroes(0, 8192, {.may_unmap = true}, {}) == error);
  }
}

TEST_CASE("a discard leaves partial blocks alone and reaches the end of an odd size") {
  FakeOptions options = kSmall;
  options.disk_size = 64 * 1024 - 100;
  World world{options, large_blocks};
  CHECK(world.device->discard(100, 3000, false, {}) == 0);
  CHECK(world.client->server.executed.empty());
  CHECK(world.device->discard(100, 10000, false, {}) == 0);
  REQUIRE(world.client->server.executed.size() == 1);
  CHECK(world.client->server.executed[0].sector == 8);
  CHECK(world.client->server.executed[0].length == 4096);
  CHECK(world.device->discard(61440, 64 * 1024 - 100 - 61440, false, {}) == 0);
  CHECK(world.client->server.executed[1].length == 4096);
}

TEST_CASE("zeroing falls back to writing zeroes, but never when it has to be fast") {
  World world{kSmall,
              [](FakeClient& client) { client.server.open_response.max_write_zeroes_sectors = 0; }};
  world.client->server.disk = filled(64 * 1024, 3);
  CHECK(world.device->write_zeroes(0, 4096, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(world.client->server.executed.empty());
  CHECK(world.device->write_zeroes(0, 40960, {.may_unmap = true}, {}) == 0);
  for (IoOperation operation : world.operations()) CHECK(operation == IoOperation::write);
  CHECK(std::all_of(world.client->server.disk.begin(), world.client->server.disk.begin() + 40960,
                    [](std::byte b) { return b == std::byte{}; }));
}

TEST_CASE("a server that changes its mind about zeroing gets zeroes as data") {
  World world;
  world.client->server.fail = [](const Arrival& arrival) {
    return arrival.io().operation() == IoOperation::write_zeroes ? EOPNOTSUPP : 0;
  };
  CHECK(world.device->write_zeroes(0, 4096, {}, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write});
  CHECK(world.device->write_zeroes(100, 8192, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(world.operations() == std::vector{IoOperation::write});  // and nothing was changed
}

TEST_CASE("zeroes that must stay allocated are written as data to a server that may unmap") {
  FakeOptions options = kSmall;
  options.features = 0;
  const rnbd::OpenOptions trusting{.geometry = {.write_zeroes = rnbd::Use::always}};
  World world{options, nullptr, trusting};
  CHECK(world.device->write_zeroes(0, 4096, {.may_unmap = true}, {}) == 0);
  CHECK(world.device->write_zeroes(0, 4096, {.may_unmap = false}, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write_zeroes, IoOperation::write});
}

TEST_CASE("extents are what the server told, and nonsense is refused") {
  World world;
  world.client->server.extents = {{4096, 0, 0}, {8192, 3, 0}};
  std::vector<rnbd::wire::Extent> extents;
  CHECK(world.device->extents(0, 65536, 16, extents, {}) == 0);
  REQUIRE(extents.size() == 2);
  CHECK((extents[0].length == 4096U && extents[0].flags == 0U));
  CHECK((extents[1].length == 8192U && extents[1].flags == 3U));
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EPROTO);
  world.client->server.extents.clear();
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EPROTO);
}

TEST_CASE("what the server does not have is not asked for") {
  World world{kSmall, [](FakeClient& client) { client.server.device_info.flags = 0; }};
  std::vector<rnbd::wire::Extent> extents;
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EOPNOTSUPP);
  CHECK(world.device->cache(0, 4096, {}) == EOPNOTSUPP);
  CHECK(world.client->server.count(MessageType::block_status) == 0);
  CHECK(world.client->server.count(MessageType::cache) == 0);
}

TEST_CASE("a waiting call ends when its caller is asked to leave") {
  World world;
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::vector<std::byte> data(512);
  CHECK(world.device->read(0, data, {&leave_now, nullptr}) == EINTR);
  CHECK(world.device->write(0, data, false, {&leave_now, nullptr}) == EINTR);
  world.client->stalled = nullptr;
  CHECK(world.device->write(0, data, false, {}) == 0);
}

TEST_CASE("after a patch was given up half-way nothing is written any more") {
  World world;
  world.client->stalled = [](const Arrival& arrival) {
    return arrival.is_io() && arrival.io().operation() == IoOperation::write;
  };
  std::vector<std::byte> data(100);
  int asked = 0;
  auto count = [](void* context) { return ++*static_cast<int*>(context) > 0; };
  CHECK(world.device->write(10, data, false, {+count, &asked}) == EINTR);
  CHECK(asked > 1);  // it was given time to end
  world.client->stalled = nullptr;
  CHECK(world.device->write(4096, {filled(512, 1)}, false, {}) == EIO);
  CHECK(world.device->write(10, data, false, {}) == EIO);
  CHECK(world.device->read(10, data, {}) == 0);
  world.device.reset();
  auto again = world.session->open("disk0", {}, {});
  REQUIRE(again);
  CHECK((*again)->write(10, data, false, {}) == 0);
}

TEST_CASE("nothing is written between a patch's read and its write") {
  World world{kSmall, large_blocks};
  const auto block = filled(4096, 1);
  int tried = 0;
  world.client->after_answer = [&](const Arrival& arrival) {
    if (!arrival.is_io() || arrival.io().operation() != IoOperation::read) return;
    if (tried++ > 0) return;
    const rnbd::Interrupt leave{&leave_now, nullptr};
    CHECK(world.device->write(0, block, false, leave) == EINTR);
    CHECK(world.device->write_zeroes(0, 4096, {}, leave) == EINTR);
    CHECK(world.device->discard(0, 4096, false, leave) == EINTR);
    CHECK(world.device->write(100, {block.data(), 5}, false, leave) == EINTR);
  };
  CHECK(world.device->write(10, {block.data(), 10}, false, {}) == 0);
  CHECK(tried == 1);
  CHECK(world.device->write(0, block, false, {}) == 0);
}

TEST_CASE("a patch does not start while an aligned write is on its way") {
  World world{kSmall, large_blocks};
  const auto block = filled(4096, 1);
  int tried = 0;
  world.client->after_answer = [&](const Arrival& arrival) {
    if (!arrival.is_io() || tried++ > 0) return;
    CHECK(world.device->write(4096, block, false, {}) == 0);  // others may write beside it
    CHECK(world.device->write(10, {block.data(), 10}, false, {&leave_now, nullptr}) == EINTR);
  };
  CHECK(world.device->write(0, block, false, {}) == 0);
  CHECK(tried > 1);
}

TEST_CASE("patches and aligned writes of many threads lose nothing") {
  World world{kSmall, large_blocks};
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  // Every thread owns one 512-byte slice of block 0 and one whole block, and counts in both.
  auto work = [&](int id) {
    std::vector<std::byte> slice(512);
    std::vector<std::byte> block(4096);
    for (int round = 1; round <= kRounds; ++round) {
      std::memcpy(slice.data(), &round, sizeof(round));
      std::memcpy(block.data(), &round, sizeof(round));
      CHECK(world.device->write(static_cast<std::uint64_t>(id) * 512, slice, false, {}) == 0);
      CHECK(world.device->write(4096 * (1 + static_cast<std::uint64_t>(id)), block, false, {}) ==
            0);
    }
  };
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
  for (auto& thread : threads) thread.join();
  for (int id = 0; id < kThreads; ++id) {
    int slice = 0;
    int block = 0;
    std::memcpy(&slice, world.client->server.disk.data() + id * 512, sizeof(slice));
    std::memcpy(&block, world.client->server.disk.data() + 4096 * (1 + id), sizeof(block));
    CHECK(slice == kRounds);
    CHECK(block == kRounds);
  }
}

TEST_CASE("an aligned write of the patched block is never undone by the patch") {
  World world{kSmall, large_blocks};
  constexpr std::uint32_t kRounds = 500;
  std::atomic<bool> stop{false};
  // The patcher changes the last bytes of block 0 over and over; the writer counts in its first.
  std::thread patcher{[&] {
    const std::vector<std::byte> tail(16, std::byte{0xEE});
    while (!stop) CHECK(world.device->write(4080, tail, false, {}) == 0);
  }};
  std::vector<std::byte> block(4096);
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    std::memcpy(block.data(), &round, sizeof(round));
    CHECK(world.device->write(0, block, false, {}) == 0);
    std::uint32_t back = 0;
    CHECK(world.device->read(0, {reinterpret_cast<std::byte*>(&back), sizeof(back)}, {}) == 0);
    CHECK(back == round);
  }
  stop = true;
  patcher.join();
}
