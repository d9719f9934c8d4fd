// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/split_ring.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "tests/unit/vhost/guest.hpp"

namespace split_ring_test {

using namespace rnbd::vhost;
using namespace vhost_test;
using Taken = SplitRing::Taken;

namespace {

constexpr std::uint16_t kNext = 1;
constexpr std::uint16_t kWrite = 2;
constexpr std::uint16_t kIndirect = 4;

/// A driver with a ring of `size` descriptors. Guest addresses are places in the file.
struct Driver {
  static constexpr std::uint64_t kAvailable = 0x2000;
  static constexpr std::uint64_t kUsed = 0x3000;
  static constexpr std::uint64_t kTable = 0x8000;

  explicit Driver(SplitRing::Features features = {}, std::uint16_t ring_size = 8,
                  std::uint16_t base = 0)
      : size{ring_size} {
    file.put<std::uint16_t>(kAvailable + 2, base);
    file.put<std::uint16_t>(kUsed + 2, base);
    index = base;
    ring = SplitRing{size, parts(), base, features};
  }

  SplitRing::Parts parts() const { return {file.at(0), file.at(kAvailable), file.at(kUsed)}; }
  void describe(std::uint64_t place, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags, std::uint16_t next) const {
    file.put(place, address);
    file.put(place + 8, length);
    file.put(place + 12, flags);
    file.put(place + 14, next);
  }
  void descriptor(std::uint16_t at, std::uint64_t address, std::uint32_t length,
                  std::uint16_t flags = 0, std::uint16_t next = 0) const {
    describe(16ULL * at, address, length, flags, next);
  }
  void offer(std::uint16_t head) {
    file.put(kAvailable + 4 + 2ULL * (index % size), head);
    file.put(kAvailable + 2, ++index);
  }
  Taken take() { return ring.take(chain, *memory); }
  void put_and_publish(std::uint16_t head) {
    ring.put(head, 1);
    called = ring.publish();
  }
  std::uint16_t used_index() const { return file.get<std::uint16_t>(kUsed + 2); }

  std::uint16_t size;
  MemoryFile file{0x20000};
  std::shared_ptr<GuestMemory> memory = map(file, {{0, 0x20000, 0x7f00'0000'0000, 0}}).value();
  SplitRing ring;
  Chain chain;
  std::uint16_t index = 0;
  bool called = false;
};

}  // namespace

TEST_CASE("split ring: only sizes and places of virtio are possible") {
  const Driver driver;
  const SplitRing::Parts parts = driver.parts();
  CHECK(SplitRing::is_possible(1, parts));
  CHECK(SplitRing::is_possible(1U << 15, parts));
  for (const std::uint32_t size : {0U, 3U, 100U, 1U << 16, UINT32_MAX}) {
    CHECK_FALSE(SplitRing::is_possible(size, parts));
  }
  CHECK_FALSE(SplitRing::is_possible(8, {nullptr, parts.available, parts.used}));
  CHECK_FALSE(SplitRing::is_possible(8, {parts.descriptors + 8, parts.available, parts.used}));
  CHECK_FALSE(SplitRing::is_possible(8, {parts.descriptors, parts.available + 1, parts.used}));
  CHECK_FALSE(SplitRing::is_possible(8, {parts.descriptors, parts.available, parts.used + 2}));
}

TEST_CASE("split ring: a chain has what is to be read, and behind it what is to be written") {
  Driver driver;
  CHECK(driver.take() == Taken::none);
  driver.descriptor(2, 0x100, 16, kNext, 5);
  driver.descriptor(5, 0x200, 512, kNext | kWrite, 3);
  driver.descriptor(3, 0x300, 1, kWrite);
  driver.offer(2);
  CHECK(driver.ring.has_more());
  REQUIRE(driver.take() == Taken::chain);
  CHECK(driver.chain.head == 2);
  REQUIRE(driver.chain.to_read().size() == 1);
  REQUIRE(driver.chain.to_write().size() == 2);
  CHECK(driver.chain.to_write()[1].address == 0x300);
  CHECK(driver.ring.base() == 1);
  CHECK_FALSE(driver.ring.has_more());
  driver.put_and_publish(2);
  CHECK(driver.called);
  CHECK(driver.used_index() == 1);
  CHECK(driver.file.get<std::uint32_t>(Driver::kUsed + 4) == 2);
}

TEST_CASE("split ring: numbers wrap") {
  Driver driver{{}, 8, 65530};
  for (unsigned i = 0; i < 20; ++i) {
    driver.descriptor(1, 0x100, 1, kWrite);
    driver.offer(1);
    REQUIRE(driver.take() == Taken::chain);
    driver.put_and_publish(1);
  }
  CHECK(driver.used_index() == static_cast<std::uint16_t>(65530 + 20));
  CHECK(driver.ring.base() == static_cast<std::uint16_t>(65530 + 20));
}

TEST_CASE("split ring: loops, places outside and wrong orders are broken rules") {
  const auto broken = [](auto prepare, SplitRing::Features features = {}) {
    Driver driver{features};
    prepare(driver);
    return driver.take() == Taken::broken;
  };
  CHECK(broken([](Driver& d) {  // a loop
    d.descriptor(0, 0, 1, kNext, 1);
    d.descriptor(1, 0, 1, kNext, 0);
    d.offer(0);
  }));
  CHECK(broken([](Driver& d) { d.offer(8); }));
  CHECK(broken([](Driver& d) { d.offer(65535); }));
  CHECK(broken([](Driver& d) {
    d.descriptor(0, 0, 1, kNext, 8);
    d.offer(0);
  }));
  CHECK(broken([](Driver& d) {  // to be read behind what is to be written
    d.descriptor(0, 0, 1, kNext | kWrite, 1);
    d.descriptor(1, 0, 1);
    d.offer(0);
  }));
  CHECK(broken([](Driver& d) { d.file.put<std::uint16_t>(Driver::kAvailable + 2, 9); }));
  CHECK(broken([](Driver& d) { d.file.put<std::uint16_t>(Driver::kAvailable + 2, 65535); }));
  CHECK(broken([](Driver& d) {  // not agreed on
    d.descriptor(0, Driver::kTable, 16, kIndirect);
    d.offer(0);
  }));
}

TEST_CASE("split ring: tables of indirect descriptors are chains of their own") {
  Driver driver{{.indirect = true}};
  driver.descriptor(7, Driver::kTable, 3 * 16, kIndirect);
  driver.describe(Driver::kTable, 0x100, 16, kNext, 2);
  driver.describe(Driver::kTable + 32, 0x200, 4096, kNext | kWrite, 1);
  driver.describe(Driver::kTable + 16, 0x300, 1, kWrite, 0);
  driver.offer(7);
  REQUIRE(driver.take() == Taken::chain);
  CHECK(driver.chain.head == 7);
  CHECK(driver.chain.pieces.size() == 3);
  CHECK(driver.chain.readable == 1);
}

TEST_CASE("split ring: tables that cannot be are broken rules") {
  const auto broken = [](auto prepare) {
    Driver driver{{.indirect = true}};
    driver.describe(Driver::kTable, 0x100, 1, kWrite, 0);
    prepare(driver);
    driver.offer(0);
    return driver.take() == Taken::broken;
  };
  CHECK_FALSE(broken([](Driver& d) { d.descriptor(0, Driver::kTable, 16, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, Driver::kTable, 0, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, Driver::kTable, 17, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, Driver::kTable, 16, kIndirect | kNext, 1); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, 0x20000, 16, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, UINT64_MAX - 8, 16, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, 0, 0xFFFF'FFF0, kIndirect); }));
  CHECK(broken([](Driver& d) { d.descriptor(0, 0x4000, 16 * 1025, kIndirect); }));
  CHECK(broken([](Driver& d) {  // one in another
    d.describe(Driver::kTable, Driver::kTable, 16, kIndirect, 0);
    d.descriptor(0, Driver::kTable, 16, kIndirect);
  }));
  CHECK(broken([](Driver& d) {  // a loop
    d.describe(Driver::kTable, 0, 1, kNext, 0);
    d.descriptor(0, Driver::kTable, 64, kIndirect);
  }));
  CHECK(broken([](Driver& d) {  // outside
    d.describe(Driver::kTable, 0, 1, kNext, 1);
    d.descriptor(0, Driver::kTable, 16, kIndirect);
  }));
}

TEST_CASE("split ring: flags say who wants to be called") {
  Driver driver;
  driver.descriptor(0, 0, 1, kWrite);
  driver.ring.want_kicks(false);
  CHECK(driver.file.get<std::uint16_t>(Driver::kUsed) == 1);
  driver.ring.want_kicks(true);
  CHECK(driver.file.get<std::uint16_t>(Driver::kUsed) == 0);
  driver.file.put<std::uint16_t>(Driver::kAvailable, 1);
  driver.put_and_publish(0);
  CHECK_FALSE(driver.called);
  driver.file.put<std::uint16_t>(Driver::kAvailable, 0);
  CHECK_FALSE(driver.ring.publish());  // nothing new
  driver.put_and_publish(0);
  CHECK(driver.called);
}

TEST_CASE("split ring: with events a driver is called once it has waited for") {
  Driver driver{{.event_index = true}};
  const auto wait_for = [&](std::uint16_t event) {
    driver.file.put<std::uint16_t>(Driver::kAvailable + 4 + 2 * 8, event);
  };
  wait_for(3);
  driver.put_and_publish(0);
  CHECK(driver.called);  // the first one, always
  driver.put_and_publish(0);
  CHECK_FALSE(driver.called);
  driver.put_and_publish(0);
  CHECK_FALSE(driver.called);
  driver.put_and_publish(0);
  CHECK(driver.called);
  driver.put_and_publish(0);
  CHECK_FALSE(driver.called);
  driver.descriptor(0, 0, 1, kWrite);
  driver.offer(0);
  CHECK(driver.take() == Taken::chain);
  driver.ring.want_kicks(true);
  CHECK(driver.file.get<std::uint16_t>(Driver::kUsed + 4 + 8 * 8) == 1);
}

TEST_CASE("split ring: it goes on at another place") {
  Driver driver;
  driver.descriptor(0, 0, 1, kWrite);
  driver.offer(0);
  CHECK(driver.take() == Taken::chain);
  driver.ring.move_to({driver.file.at(0x10000), driver.file.at(0x12000), driver.file.at(0x13000)});
  CHECK(driver.ring.has_more());  // the other place says 0
  driver.file.put<std::uint16_t>(0x12002, 1);
  CHECK_FALSE(driver.ring.has_more());
}

}  // namespace split_ring_test
