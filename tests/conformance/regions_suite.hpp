// SPDX-License-Identifier: BSD-3-Clause
// The duties of a transport whose peers read and write memory by themselves; see suite.hpp.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/conformance/suite.hpp"

namespace rtrs::conformance {

/// Waits for the end of a key, whichever thread tells it.
class Death {
 public:
  std::function<void()> teller() {
    return [this] {
      const std::lock_guard lock{mutex_};
      ++told_;
      changed_.notify_all();
    };
  }
  bool told() {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, std::chrono::seconds{60}, [this] { return told_ > 0; });
  }
  unsigned count() {
    const std::lock_guard lock{mutex_};
    return told_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned told_ = 0;
};

TEST_CASE_TEMPLATE_DEFINE("the regions of a path", Fixture, regions_conformance) {
  Fixture f;
  // Pages of their own, so that a neighbour is no part of what is locked for a region.
  constexpr std::size_t kBlock = 64 * 1024;
  auto memory = pattern(3 * kBlock, 9);
  const auto before = memory;
  const MutableBytes block = MutableBytes{memory}.subspan(kBlock, kBlock);
  std::vector<std::byte> own(2 * kBlock);
  f.share_left(own);
  const MutableBytes into = MutableBytes{own}.first(kBlock);
  const MutableBytes from = MutableBytes{own}.subspan(kBlock);
  std::ranges::copy(pattern(kBlock, 5), from.begin());
  QueuePair& left = f.left();
  Regions& regions = f.regions_right();
  Death death;
  const auto expose = [&](unsigned access) {
    auto where = regions.expose(block, access);
    REQUIRE(where.has_value());
    return *where;
  };
  const auto at = [](RemoteMemory where, std::uint64_t offset) {
    return RemoteMemory{where.address + offset, where.key};
  };
  const auto settle = [&] {
    left.flush();
    f.settle();
  };
  const auto has_died = [&] {
    f.settle();
    return death.told();
  };
  const auto is_refused = [&] {
    settle();
    CHECK(f.left_failed());
    CHECK(f.heard_by_left().done.empty());
    CHECK(equal(memory, before));
  };

  SUBCASE("a read brings the bytes of the peer's memory, and the peer hears nothing") {
    const RemoteMemory where = expose(kRegionRead);
    const Ticket ticket = left.read(at(where, 100), into.first(5000));
    settle();
    CHECK(f.heard_by_left().done == std::vector<Ticket>{ticket});
    CHECK(equal(into.first(5000), block.subspan(100, 5000)));
    CHECK(f.heard_by_right().events.empty());
  }

  SUBCASE("a confirmed write has landed when its end is told, and nothing beside it") {
    const RemoteMemory where = expose(kRegionWrite);
    bool landed = false;
    f.heard_by_left().on_event = [&] { landed = equal(block.subspan(1, 4096), from.first(4096)); };
    const Ticket ticket = left.write_confirmed(at(where, 1), from.first(4096));
    settle();
    CHECK(f.heard_by_left().done == std::vector<Ticket>{ticket});
    CHECK(landed);
    CHECK(f.heard_by_right().events.empty());
    std::ranges::copy(before.begin() + kBlock + 1, before.begin() + kBlock + 4097,
                      block.begin() + 1);
    CHECK(equal(memory, before));
  }

  SUBCASE("as many as may be under way end in their order, the last byte of a region included") {
    const RemoteMemory where = expose(kRegionRead | kRegionWrite);
    std::vector<Ticket> expected;
    for (unsigned round = 0; round < 8; ++round) {
      for (unsigned i = 0; i < QueuePair::kMaxUnconfirmed; ++i) {
        const std::size_t size = (i * 7919U + round) % kBlock + 1;
        expected.push_back(i % 2 == 0
                               ? left.read(at(where, kBlock - size), into.first(size))
                               : left.write_confirmed(at(where, kBlock - size), from.last(size)));
      }
      settle();
    }
    CHECK(f.heard_by_left().done == expected);
    CHECK_FALSE(f.left_failed());
    CHECK(block.back() == from.back());
  }

  SUBCASE("a read sees what was written before it, and nothing that is written behind it") {
    const RemoteMemory where = expose(kRegionRead | kRegionWrite);
    left.write(where, from.first(16'384));
    left.read(where, into.first(16'384));
    settle();
    CHECK(equal(into.first(16'384), from.first(16'384)));
  }

  SUBCASE("of nothing, with no key, both end as others do") {
    const Ticket ticket = left.read({}, {});
    settle();
    CHECK(f.heard_by_left().done == std::vector<Ticket>{ticket});
    CHECK_FALSE(f.right_failed());
  }

  SUBCASE("a retired key opens nothing") {
    const RemoteMemory where = expose(kRegionRead | kRegionWrite);
    regions.retire(where, death.teller());
    REQUIRE(has_died());
    SUBCASE("for a write") { left.write_confirmed(where, from.first(64)); }
    SUBCASE("for a read") { left.read(where, into.first(64)); }
    SUBCASE("also when its memory was exposed again") {
      const RemoteMemory again = expose(kRegionRead | kRegionWrite);
      CHECK_FALSE((again.key == where.key && again.address == where.address));
      left.write_confirmed(where, from.first(64));
    }
    is_refused();
  }

  SUBCASE("a key that was never given out opens nothing") {
    const RemoteMemory where = expose(kRegionRead | kRegionWrite);
    SUBCASE("a neighbour's") {
      left.write_confirmed({where.address, where.key + 1}, from.first(8));
    }
    SUBCASE("a read") { left.read({where.address, where.key ^ 0x10000}, into.first(8)); }
    is_refused();
  }

  SUBCASE("nothing goes beyond a region") {
    const RemoteMemory where = expose(kRegionRead | kRegionWrite);
    SUBCASE("a write by one byte") { left.write_confirmed(at(where, 1), from); }
    SUBCASE("a read by one byte") { left.read(at(where, kBlock - 7), into.first(8)); }
    SUBCASE("a write in front of it") { left.write_confirmed(at(where, ~0ULL), from.first(8)); }
    SUBCASE("a read far behind it") { left.read(at(where, 2 * kBlock), into.first(8)); }
    is_refused();
  }

  SUBCASE("a region is good for what it was given for") {
    SUBCASE("no write where reads are allowed") {
      left.write_confirmed(expose(kRegionRead), from.first(8));
    }
    SUBCASE("no read where writes are allowed") { left.read(expose(kRegionWrite), into.first(8)); }
    is_refused();
  }

  SUBCASE("the end of one key leaves others as they are") {
    const RemoteMemory one = expose(kRegionRead | kRegionWrite);
    const auto other = regions.expose(MutableBytes{memory}.first(kBlock), kRegionRead);
    REQUIRE(other.has_value());
    regions.retire(one, death.teller());
    REQUIRE(has_died());
    left.read(*other, into);
    settle();
    CHECK(f.heard_by_left().done.size() == 1);
    CHECK(equal(into, MutableBytes{memory}.first(kBlock)));
    CHECK(death.count() == 1);
  }

  SUBCASE("the end of all is told once, with and without keys") {
    SUBCASE("none") {}
    SUBCASE("some") {
      for (int i = 0; i < 5; ++i) expose(kRegionRead | kRegionWrite);
    }
    regions.retire_all(death.teller());
    REQUIRE(has_died());
    CHECK(death.count() == 1);
  }

  SUBCASE("a region has one byte at least, and two megabytes at most") {
    std::vector<std::byte> large(Regions::kMaxRegion + 1);
    CHECK(regions.expose({}, kRegionRead) == tl::unexpected(EINVAL));
    CHECK(regions.expose(large, kRegionRead) == tl::unexpected(EINVAL));
    CHECK(regions.expose(MutableBytes{large}.first(Regions::kMaxRegion), kRegionRead).has_value());
    regions.retire_all(death.teller());  // before its memory goes
    REQUIRE(has_died());
  }

  Death last;
  regions.retire_all(last.teller());
  f.settle();
  REQUIRE(last.told());
}

}  // namespace rtrs::conformance
