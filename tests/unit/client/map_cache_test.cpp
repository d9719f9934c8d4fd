// SPDX-License-Identifier: BSD-3-Clause
// Which blocks get maps, and when these end.
#include "bridge/client/brick/map_cache.hpp"

#include <doctest/doctest.h>

namespace rnbd::map_cache_test {
namespace {

using Block = MapCache::Block;
using State = MapCache::Entry::State;

constexpr std::uint32_t kBoth = wire::kMapRead | wire::kMapWrite;

MappedBlock mapped(Block block, std::uint32_t rights) {
  MappedBlock map;
  map.id = block * wire::kBrickBlock;
  map.rights = rights;
  return map;
}

/// Two requests make a block worth a map.
void use(MapCache& cache, Block block, unsigned times = 2) {
  for (unsigned i = 0; i < times; ++i) {
    if (const auto pin = cache.enter(block, false)) cache.leave(pin);
  }
}

void map(MapCache& cache, Block block, std::uint32_t rights = kBoth) {
  use(cache, block);
  REQUIRE(cache.next_wish() == block);
  cache.mapped(mapped(block, rights));
}

TEST_CASE("map cache: a block that requests come to again is wished for, once") {
  MapCache cache{2};
  CHECK(cache.enter(7, false) == nullptr);
  CHECK_FALSE(cache.next_wish());
  CHECK_FALSE(cache.has_news());
  CHECK(cache.enter(7, false) == nullptr);
  CHECK(cache.has_news());
  CHECK(cache.next_wish() == 7);
  use(cache, 7, 10);
  CHECK_FALSE(cache.next_wish());
  cache.mapped(mapped(7, kBoth));
  const auto pin = cache.enter(7, true);
  REQUIRE(pin != nullptr);
  CHECK_FALSE(cache.leave(pin));
}

TEST_CASE("map cache: nothing is wished for where nothing may be mapped") {
  MapCache cache{0};
  use(cache, 1, 100);
  CHECK_FALSE(cache.next_wish());
}

TEST_CASE("map cache: a refused block is left alone for long") {
  MapCache cache{2};
  use(cache, 7);
  REQUIRE(cache.next_wish() == 7);
  cache.refused(7);
  use(cache, 7, 50);
  CHECK_FALSE(cache.next_wish());
  use(cache, 7, 50);
  CHECK(cache.next_wish() == 7);
}

TEST_CASE("map cache: a map for reading makes room for one for writing, when there may be one") {
  MapCache cache{2};
  map(cache, 1, wire::kMapRead);
  CHECK(cache.enter(1, true) == nullptr);
  CHECK(cache.enter(1, false) != nullptr);
  CHECK_FALSE(cache.next_leaver());
  cache.allow_writes(true);
  CHECK(cache.enter(1, true) == nullptr);
  CHECK_FALSE(cache.next_leaver());  // its user is still there
}

TEST_CASE("map cache: a recalled map ends behind its users, and its block is there until then") {
  MapCache cache{2};
  map(cache, 1);
  const auto pin = cache.enter(1, true);
  cache.recall(1);
  CHECK(cache.enter(1, false) == nullptr);
  CHECK_FALSE(cache.next_leaver());
  CHECK(cache.leave(pin));
  const auto leaver = cache.next_leaver();
  REQUIRE(leaver != nullptr);
  CHECK(leaver->state == State::ending);
  CHECK_FALSE(cache.next_leaver());
  CHECK(cache.overlaps(0, 5));
  CHECK_FALSE(cache.overlaps(2, 5));
  cache.unmapped(leaver);
  CHECK_FALSE(cache.overlaps(0, ~Block{0}));
}

TEST_CASE("map cache: the block whose use is longest ago makes room, if that is long ago") {
  MapCache cache{2};
  map(cache, 1);
  map(cache, 2);
  use(cache, 3);
  CHECK_FALSE(cache.next_wish());
  CHECK_FALSE(cache.next_leaver());
  use(cache, 2, 1100);
  use(cache, 3);
  CHECK_FALSE(cache.next_wish());
  const auto leaver = cache.next_leaver();
  REQUIRE(leaver != nullptr);
  CHECK(leaver->block() == 1);
  cache.unmapped(leaver);
  CHECK(cache.next_wish() == 3);
}

TEST_CASE("map cache: only maps with a key that may read serve to settle writes") {
  MapCache cache{2};
  using Before = MapCache::Before;
  CHECK(cache.before_two_sided(0, 5, true).before == Before::go);
  map(cache, 1);
  CHECK(cache.before_two_sided(2, 5, true).before == Before::go);
  CHECK(cache.before_two_sided(0, 5, false).before == Before::wait);
  const auto duty = cache.before_two_sided(0, 5, true);
  CHECK(duty.before == Before::settle);
  REQUIRE(duty.pin != nullptr);
  cache.recall(1);
  CHECK_FALSE(cache.next_leaver());
  CHECK(cache.leave(duty.pin));
  REQUIRE(cache.next_leaver() != nullptr);
  CHECK(cache.before_two_sided(0, 5, true).before == Before::wait);
}

TEST_CASE("map cache: after the end of all keys users of old maps change nothing") {
  MapCache cache{2};
  map(cache, 1);
  const auto old = cache.enter(1, true);
  cache.clear();
  CHECK(old->state == State::gone);
  map(cache, 1);
  const auto pin = cache.enter(1, true);
  CHECK_FALSE(cache.leave(old));
  cache.recall(1);
  CHECK_FALSE(cache.next_leaver());
  CHECK(cache.leave(pin));
}

}  // namespace
}  // namespace rnbd::map_cache_test
