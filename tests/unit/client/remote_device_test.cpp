// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/remote_device.hpp"

#include <doctest/doctest.h>

#include "tests/unit/client/device_world.hpp"

namespace rnbd::test::remote_device_test {
namespace {

TEST_CASE("any mix of unaligned reads, writes and zeroes behaves like memory") {
  for (std::uint16_t block : {512, 4096}) {
    for (std::size_t size : {64U * 1024U, 64U * 1024U - 3U, 61U * 1024U + 1U, 513U}) {
      CAPTURE(block);
      CAPTURE(size);
      FakeOptions options = kSmall;
      options.disk_size = size;
      DeviceWorld world{options, [&](FakeClient& client) {
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
  DeviceWorld world{kSmall, large_blocks};
  const auto data = filled(8192, 1);
  CHECK(world.device->write(4096, {data.data(), 4096}, false, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write});
  world.client->server.executed.clear();
  CHECK(world.device->write(512, {data.data(), 512}, false, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::read, IoOperation::write});
}

TEST_CASE("FUA reaches every request of an unaligned write") {
  DeviceWorld world{kSmall, large_blocks};
  const auto data = filled(12288, 1);
  CHECK(world.device->write(2048, data, true, {}) == 0);
  for (const auto& io : world.client->server.executed) {
    if (io.operation() == IoOperation::write) CHECK((io.rw & wire::kIoFua) != 0);
  }
}

TEST_CASE("a server without FUA gets a flush after the write instead") {
  FakeOptions options = kSmall;
  options.features = 0;
  DeviceWorld world{options, [](FakeClient& client) {
                      client.server.open_response.cache_policy = wire::kCacheWriteback;
                    }};
  const auto data = filled(512, 1);
  CHECK(world.device->write(0, data, true, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write, IoOperation::flush});
  CHECK(world.client->server.executed[0].rw == 0x001);
}

TEST_CASE("a change of a device opened ro is refused without asking the server") {
  DeviceWorld world{kSmall, nullptr, {.access = AccessMode::read_only}};
  const auto data = filled(512, 1);
  CHECK(world.device->write(0, data, false, {}) == EROFS);
  CHECK(world.device->discard(0, 512, false, {}) == EROFS);
  CHECK(world.device->write_zeroes(0, 512, {}, {}) == EROFS);
  CHECK(world.client->server.executed.empty());
}

TEST_CASE("an export that is read-only itself makes the device read-only") {
  DeviceWorld world{
      kSmall, [](FakeClient& client) { client.server.device_info.flags = wire::kDeviceReadOnly; }};
  CHECK(world.device->read_only());
}

TEST_CASE("a range outside the device is refused") {
  DeviceWorld world;
  std::vector<std::byte> data(512);
  CHECK(world.device->read(64 * 1024, data, {}) == EINVAL);
  CHECK(world.device->read(64 * 1024 - 511, data, {}) == EINVAL);
  CHECK(world.device->write(UINT64_MAX, data, false, {}) == EINVAL);
  CHECK(world.device->discard(0, UINT64_MAX, false, {}) == EINVAL);
  CHECK(world.device->read(64 * 1024, {}, {}) == 0);
}

TEST_CASE("the server's errno reaches the caller, whatever the shape of the request") {
  DeviceWorld world{kSmall, large_blocks};
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
  DeviceWorld world{options, large_blocks};
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
  DeviceWorld world{
      kSmall, [](FakeClient& client) { client.server.open_response.max_write_zeroes_sectors = 0; }};
  world.client->server.disk = filled(64 * 1024, 3);
  CHECK(world.device->write_zeroes(0, 4096, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(world.client->server.executed.empty());
  CHECK(world.device->write_zeroes(0, 40960, {.may_unmap = true}, {}) == 0);
  for (IoOperation operation : world.operations()) CHECK(operation == IoOperation::write);
  CHECK(std::all_of(world.client->server.disk.begin(), world.client->server.disk.begin() + 40960,
                    [](std::byte b) { return b == std::byte{}; }));
}

TEST_CASE("a server that changes its mind about zeroing gets zeroes as data") {
  DeviceWorld world;
  world.client->server.fail = [](const Arrival& arrival) {
    return arrival.io().operation() == IoOperation::write_zeroes ? EOPNOTSUPP : 0;
  };
  CHECK(world.device->write_zeroes(0, 4096, {}, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write});
  CHECK(world.device->write_zeroes(100, 8192, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(world.operations() == std::vector{IoOperation::write});  // and nothing was changed
}

TEST_CASE(
    "a server that says of reads, writes or flushes that it knows none tells an error of its own") {
  DeviceWorld world;
  world.client->server.fail = [](const Arrival&) { return EOPNOTSUPP; };
  std::vector<std::byte> data(8192);
  for (const std::size_t at : {0, 100}) {
    const rtrs::MutableBytes part{data.data(), 4096};
    CHECK(world.device->read(at, part, {}) == EIO);
    CHECK(world.device->write(at, part, false, {}) == EIO);
    // nbdkit aborts when it is told that zeroes are not supported and it did not ask for fast ones.
    CHECK(world.device->write_zeroes(at, 4096, {}, {}) == EIO);
  }
  CHECK(world.device->flush({}) == EIO);
  CHECK(world.device->write_zeroes(0, 4096, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(world.device->discard(0, 4096, false, {}) == EOPNOTSUPP);
}

TEST_CASE("zeroes that must stay allocated are written as data to a server that may unmap") {
  FakeOptions options = kSmall;
  options.features = 0;
  const OpenOptions trusting{.geometry = {.write_zeroes = Use::always}};
  DeviceWorld world{options, nullptr, trusting};
  CHECK(world.device->write_zeroes(0, 4096, {.may_unmap = true}, {}) == 0);
  CHECK(world.device->write_zeroes(0, 4096, {.may_unmap = false}, {}) == 0);
  CHECK(world.operations() == std::vector{IoOperation::write_zeroes, IoOperation::write});
}

TEST_CASE("extents are what the server told, and nonsense is refused") {
  DeviceWorld world;
  world.client->server.extents = {{4096, 0, 0}, {8192, 3, 0}};
  std::vector<wire::Extent> extents;
  CHECK(world.device->extents(0, 65536, 16, extents, {}) == 0);
  REQUIRE(extents.size() == 2);
  CHECK((extents[0].length == 4096U && extents[0].flags == 0U));
  CHECK((extents[1].length == 8192U && extents[1].flags == 3U));
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EPROTO);
  world.client->server.extents.clear();
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EPROTO);
}

TEST_CASE("what the server does not have is not asked for") {
  DeviceWorld world{kSmall, [](FakeClient& client) { client.server.device_info.flags = 0; }};
  std::vector<wire::Extent> extents;
  CHECK(world.device->extents(0, 4096, 16, extents, {}) == EOPNOTSUPP);
  CHECK(world.device->cache(0, 4096, {}) == EOPNOTSUPP);
  CHECK(world.client->server.count(MessageType::block_status) == 0);
  CHECK(world.client->server.count(MessageType::cache) == 0);
}

TEST_CASE("a waiting call ends when its caller is asked to leave") {
  DeviceWorld world;
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  std::vector<std::byte> data(512);
  CHECK(world.device->read(0, data, {&leave_now, nullptr}) == EINTR);
  CHECK(world.device->write(0, data, false, {&leave_now, nullptr}) == EINTR);
  world.client->stalled = nullptr;
  CHECK(world.device->write(0, data, false, {}) == 0);
}

}  // namespace
}  // namespace rnbd::test::remote_device_test
