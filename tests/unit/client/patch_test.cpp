// SPDX-License-Identifier: BSD-3-Clause
// Patches: writes of a part of a block, which are a read and a write, and what happens beside them.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/unit/client/device_world.hpp"

namespace rnbd::test::patch_test {
namespace {

TEST_CASE("a patch that was given up in its read holds back nothing") {
  DeviceWorld world;
  world.client->stalled = [](const Arrival& arrival) { return arrival.is_io(); };
  const auto data = filled(100, 1);
  CHECK(world.device->write(10, data, false, {&leave_now, nullptr}) == EINTR);
  world.client->stalled = nullptr;
  CHECK(world.device->write(0, filled(512, 2), false, {&leave_now, nullptr}) == 0);
}

TEST_CASE("after a patch was given up in its write, changes wait for its end and then go on") {
  DeviceWorld world;
  world.client->stalled = [](const Arrival& arrival) {
    return arrival.is_io() && arrival.io().operation() == IoOperation::write;
  };
  const auto old = filled(100, 1);
  CHECK(world.device->write(0, old, false, {&leave_now, nullptr}) == EINTR);
  CHECK(world.device->handle().unresolved->writes());
  // The end of the first patch lets the second one read, so that this finds what it left.
  world.client->stalled = nullptr;
  const auto newer = filled(50, 2);
  CHECK(world.device->write(50, newer, false, {}) == 0);
  CHECK_FALSE(world.device->handle().unresolved->writes());
  std::vector<std::byte> block(100);
  CHECK(world.device->read(0, block, {}) == 0);
  CHECK(std::equal(old.begin(), old.begin() + 50, block.begin()));
  CHECK(std::equal(newer.begin(), newer.end(), block.begin() + 50));
  CHECK(world.device->write(4096, filled(512, 3), false, {}) == 0);
}

TEST_CASE("nothing is written between a patch's read and its write") {
  DeviceWorld world{kSmall, large_blocks};
  const auto block = filled(4096, 1);
  int tried = 0;
  world.client->after_answer = [&](const Arrival& arrival) {
    if (!arrival.is_io() || arrival.io().operation() != IoOperation::read) return;
    if (tried++ > 0) return;
    const Interrupt leave{&leave_now, nullptr};
    CHECK(world.device->write(0, block, false, leave) == EINTR);
    CHECK(world.device->write_zeroes(0, 4096, {}, leave) == EINTR);
    CHECK(world.device->discard(0, 4096, false, leave) == EINTR);
    CHECK(world.device->write(100, {block.data(), 5}, false, leave) == EINTR);
    CHECK(world.device->write(4096, block, false, leave) == 0);  // other blocks go on
    CHECK(world.device->write(8192 + 100, {block.data(), 5}, false, leave) == 0);
  };
  CHECK(world.device->write(10, {block.data(), 10}, false, {}) == 0);
  CHECK(tried == 2);  // the other one is the patch elsewhere
  CHECK(world.device->write(0, block, false, {}) == 0);
}

TEST_CASE("a patch does not start while an aligned write is on its way") {
  DeviceWorld world{kSmall, large_blocks};
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
  DeviceWorld world{kSmall, large_blocks};
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
  DeviceWorld world{kSmall, large_blocks};
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

}  // namespace
}  // namespace rnbd::test::patch_test
