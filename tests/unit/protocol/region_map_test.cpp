// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::region_map_test {
namespace {

using mirror::RegionMap;

/// A set of regions, kept in the plainest way.
struct Reference {
  std::uint32_t regions;
  std::set<std::uint32_t> in;

  void add(std::uint32_t begin, std::uint32_t end) {
    for (; begin < end; ++begin) in.insert(begin);
  }
  std::uint32_t next(std::uint32_t from) const {
    const auto found = in.lower_bound(from);
    return found != in.end() ? *found : regions;
  }
  void set_word(std::uint32_t index, std::uint64_t word) {
    for (std::uint32_t bit = 0; bit < 64 && index * 64 + bit < regions; ++bit) {
      in.erase(index * 64 + bit);
      if ((word >> bit & 1) != 0) in.insert(index * 64 + bit);
    }
  }
};

void check_same(const RegionMap& map, const Reference& reference) {
  CHECK(map.empty() == reference.in.empty());
  CHECK(map.count() == reference.in.size());
  std::vector<std::uint32_t> seen;
  for (auto region = map.next(0); region < map.regions(); region = map.next(region + 1))
    seen.push_back(region);
  CHECK(seen == std::vector<std::uint32_t>(reference.in.begin(), reference.in.end()));
}

}  // namespace

TEST_CASE("region map: a region behind the end is left out") {
  RegionMap map{4};
  for (const std::uint32_t region : {4U, 63U, 64U, 100000U, ~0U}) map.add(region);
  CHECK(map.empty());
  CHECK(map.words().front() == 0);
}

TEST_CASE("region map: whatever is done to it, it says what a plain set says") {
  // The summaries end within a word, at its end, and one region behind it.
  const std::vector<std::uint32_t> sizes{1, 63, 64, 65, 4095, 4096, 4097, 262144, 262145, 300000};
  for (const std::uint32_t regions : sizes) {
    CAPTURE(regions);
    std::mt19937_64 random{regions};
    const auto below = [&](std::uint64_t end) {
      return static_cast<std::uint32_t>(random() % end);
    };
    RegionMap map{regions};
    Reference reference{.regions = regions, .in = {}};
    for (unsigned round = 0; round < 3000; ++round) {
      // A few places come again and again, also the last one.
      const std::uint32_t region =
          round % 4 == 0 ? regions - 1 - below(regions) / 1000 % regions : below(regions);
      const std::uint64_t chance = random() % 1000;
      if (chance < 400) {
        map.add(region);
        reference.in.insert(region);
      } else if (chance < 750) {
        const std::uint32_t victim = map.next(region);
        if (victim < regions) map.remove(victim);
        reference.in.erase(victim);
        map.remove(region);
        reference.in.erase(region);
      } else if (chance < 850) {
        const std::uint64_t word = random() & random() & random();
        map.set_word(region / 64, chance % 2 == 0 ? word : 0);
        reference.set_word(region / 64, chance % 2 == 0 ? word : 0);
      } else if (chance < 990) {
        RegionMap other{regions};
        Reference others{.regions = regions, .in = {}};
        for (unsigned i = 0; i < 5; ++i) {
          const std::uint32_t one = below(regions);
          other.add(one);
          others.in.insert(one);
        }
        if (chance % 2 == 0) {
          map.add(other);
          reference.in.insert(others.in.begin(), others.in.end());
        } else {
          map.remove(other);
          for (const std::uint32_t one : others.in) reference.in.erase(one);
        }
      } else if (chance < 998) {
        map.clear();
        reference.in.clear();
      } else if (regions < 10000) {
        map.add_all();
        reference.add(0, regions);
      }
      CHECK(map.contains(region) == reference.in.contains(region));
      CHECK(map.next(region) == reference.next(region));
      CHECK(map.next(regions) == regions);
      CHECK(map.count() == reference.in.size());
      CHECK(map.empty() == reference.in.empty());
    }
    check_same(map, reference);
  }
}

TEST_CASE("region map: nothing is beyond its end") {
  RegionMap map{70};
  map.add_all();
  CHECK(map.count() == 70);
  map.set_word(1, ~std::uint64_t{0});
  CHECK(map.count() == 70);
  CHECK(map.words()[1] == 0x3F);
  CHECK_FALSE(map.contains(70));
  CHECK(map.next(69) == 69);
  CHECK(map.next(70) == 70);
  CHECK(map.next(~std::uint32_t{0}) == 70);
  CHECK(RegionMap{}.next(0) == 0);
  CHECK(RegionMap{}.empty());
}

}  // namespace rnbd::region_map_test
