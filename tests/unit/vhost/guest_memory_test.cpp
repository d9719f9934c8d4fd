// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/guest_memory.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <span>
#include <string>
#include <thread>

#include "tests/unit/vhost/guest.hpp"

namespace guest_memory_test {

using namespace vhost_test;

namespace {

constexpr std::uint64_t kUser = 0x7f00'0000'0000;

bool reads(const GuestMemory& memory, std::uint64_t guest, std::size_t size) {
  std::vector<std::byte> into(size);
  return memory.read(guest, into);
}

}  // namespace

TEST_CASE("guest memory: addresses are found in their region, with overflow and bounds") {
  const MemoryFile file{4 * kPage};
  file.put<std::uint32_t>(kPage + 8, 77);
  const auto memory = map(file, {{0x1000'0000, 2 * kPage, kUser, kPage}});
  REQUIRE(memory.has_value());
  std::uint32_t value = 0;
  CHECK((*memory)->read(0x1000'0008, std::as_writable_bytes(std::span{&value, 1})));
  CHECK(value == 77);
  CHECK(reads(**memory, 0x1000'0000, 2 * kPage));
  CHECK_FALSE(reads(**memory, 0x1000'0000, 2 * kPage + 1));
  CHECK_FALSE(reads(**memory, 0x0fff'ffff, 1));
  CHECK_FALSE(reads(**memory, UINT64_MAX, 2));
  CHECK_FALSE(reads(**memory, 0, 1));
  CHECK((*memory)->at_user(kUser + 8, 4) != nullptr);
  CHECK((*memory)->at_user(kUser, 2 * kPage) != nullptr);
  CHECK((*memory)->at_user(kUser, 2 * kPage + 1) == nullptr);
  CHECK((*memory)->at_user(kUser + kPage, UINT64_MAX) == nullptr);
  CHECK((*memory)->at_user(kUser - 1, 1) == nullptr);
  CHECK((*memory)->at_user(kUser + 2 * kPage, 0) == nullptr);
}

TEST_CASE("guest memory: bytes may cross from one region into the next one") {
  const MemoryFile file{4 * kPage};
  const auto memory =
      map(file, {{kPage, kPage, kUser, 0}, {2 * kPage, kPage, kUser + kPage, 2 * kPage}});
  REQUIRE(memory.has_value());
  const std::array<std::byte, 4> four{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  CHECK((*memory)->write(2 * kPage - 2, four));
  CHECK(file.get<std::uint8_t>(kPage - 1) == 2);
  CHECK(file.get<std::uint8_t>(2 * kPage) == 3);
  CHECK((*memory)->at_user(kUser + kPage - 2, 4) == nullptr);
  CHECK_FALSE((*memory)->write(3 * kPage - 2, four));
}

TEST_CASE("guest memory: tables that cannot be are refused with a sentence") {
  const MemoryFile file{4 * kPage};
  const auto refused = [&](const std::vector<MemoryRegion>& regions) {
    const auto memory = map(file, regions);
    return !memory && !memory.error().empty();
  };
  CHECK(refused({{0, 0, kUser, 0}}));
  CHECK(refused({{0, 5 * kPage, kUser, 0}}));
  CHECK(refused({{0, kPage, kUser, 4 * kPage}}));
  CHECK(refused({{0, kPage, kUser, UINT64_MAX}}));
  CHECK(refused({{0, UINT64_MAX, kUser, 0}}));
  CHECK(refused({{UINT64_MAX - 1, kPage, kUser, 0}}));
  CHECK(refused({{0, kPage, UINT64_MAX - 1, 0}}));
  CHECK(refused({{0, 2 * kPage, kUser, 0}, {kPage, kPage, 2 * kUser, 0}}));
  CHECK(refused({{0, 2 * kPage, kUser, 0}, {8 * kPage, kPage, kUser + kPage, 0}}));
  CHECK_FALSE(refused({{0, 2 * kPage, kUser, 0}, {8 * kPage, kPage, 2 * kUser, 0}}));
}

TEST_CASE("guest memory: a pipe is no memory") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  std::vector<rtrs::OwnedFd> files;
  files.emplace_back(ends[0]);
  const rtrs::OwnedFd other{ends[1]};
  const MemoryTable table{.count = 1, .regions = {{{0, kPage, kUser, 0}}}};
  CHECK_FALSE(GuestMemory::map(table, std::move(files)).has_value());
}

TEST_CASE("guest memory: a file that shrinks ends nothing, and its zeroes are nobody's bytes") {
  const MemoryFile file{4 * kPage};
  const auto memory = map(file, {{0, 4 * kPage, kUser, 0}});
  REQUIRE(memory.has_value());
  std::byte* const ring = (*memory)->at_user(kUser + 3 * kPage, kPage);
  REQUIRE(file.resize(2 * kPage));
  CHECK(reads(**memory, 0, 2 * kPage));
  CHECK_FALSE((*memory)->is_lost());
  CHECK_FALSE(reads(**memory, 2 * kPage, kPage));
  CHECK((*memory)->is_lost());
  const std::array<std::byte, 4> four{};
  CHECK_FALSE((*memory)->write(3 * kPage, four));
  CHECK(*ring == std::byte{0});
}

TEST_CASE("guest memory: a loss replaces its own region, while others come and go") {
  std::atomic<bool> ends{false};
  std::atomic<unsigned> wrong{0};
  std::thread others{[&] {
    const MemoryFile file{64 * kPage};
    file.put<std::uint32_t>(0, 77);
    for (std::size_t i = 0; !ends; ++i) {
      const auto memory = map(file, {{0, (1 + i % 64) * kPage, kUser, 0}});
      std::uint32_t value = 0;
      const auto bytes = std::as_writable_bytes(std::span{&value, 1});
      if (!memory || !(*memory)->read(0, bytes) || value != 77) ++wrong;
    }
  }};
  for (int i = 0; i < 2000; ++i) {
    const MemoryFile file{2 * kPage};
    const auto memory = map(file, {{0, 2 * kPage, kUser, 0}});
    REQUIRE(file.resize(kPage));
    if (reads(**memory, kPage, kPage) || !(*memory)->is_lost()) ++wrong;
  }
  ends = true;
  others.join();
  CHECK(wrong == 0);
}

TEST_CASE("guest memory: tables come and go more often than there are places for them") {
  const MemoryFile file{2 * kPage};
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(map(file, {{0, kPage, kUser, 0}, {kPage, kPage, 2 * kUser, kPage}}).has_value());
  }
}

}  // namespace guest_memory_test
