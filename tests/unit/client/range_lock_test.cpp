// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/range_lock.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>
#include <vector>

using namespace rnbd::mirror;

namespace {

using Mode = RangeLock::Mode;
using Owners = std::vector<std::uint64_t>;

/// The rule, word by word: an entry is held when no older one that it meets is left, but for reads
/// that meet reads.
struct Rule {
  struct Entry {
    std::uint64_t owner;
    Range range;
    Mode mode;
  };
  std::list<Entry> entries;

  std::set<std::uint64_t> held() const {
    std::set<std::uint64_t> owners;
    for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
      const bool waits = std::any_of(entries.begin(), entry, [&](const Entry& older) {
        const bool both_read = older.mode == Mode::shared && entry->mode == Mode::shared;
        return !both_read && older.range.overlaps(entry->range);
      });
      if (!waits) owners.insert(entry->owner);
    }
    return owners;
  }
};

/// Sectors of a place that entries share a list for.
constexpr std::uint64_t kPlace = 512;

}  // namespace

TEST_CASE("a range is held as soon as no older one that it meets is left") {
  for (const std::uint64_t sectors : {8 * kPlace, 2000 * kPlace, std::uint64_t{64}}) {
    std::mt19937_64 random{sectors};
    RangeLock lock;
    Rule rule;
    std::set<std::uint64_t> held;
    for (std::uint64_t next = 1; next <= 3000; ++next) {
      const std::uint64_t begin = random() % sectors;
      const std::uint64_t longest = random() % 20 == 0 ? sectors : 16;
      const Range range{begin, std::min(sectors, begin + 1 + random() % longest)};
      const Mode mode = random() % 3 == 0 ? Mode::shared : Mode::exclusive;
      rule.entries.push_back({next, range, mode});
      if (lock.acquire(next, range, mode)) held.insert(next);
      REQUIRE(held == rule.held());
      while (rule.entries.size() > 40 || (random() % 2 == 0 && !held.empty())) {
        auto leaves = held.begin();
        std::advance(leaves, random() % held.size());
        const std::uint64_t owner = *leaves;
        held.erase(leaves);
        rule.entries.remove_if([=](const Rule::Entry& entry) { return entry.owner == owner; });
        for (const std::uint64_t granted : lock.release(owner)) held.insert(granted);
        REQUIRE(held == rule.held());
      }
    }
  }
}

TEST_CASE("who asked first gets a range before others who wait for the same") {
  RangeLock lock;
  REQUIRE(lock.acquire(1, {0, 8}, Mode::exclusive));
  for (const std::uint64_t reader : {5, 3, 4})
    REQUIRE_FALSE(lock.acquire(reader, {0, 8}, Mode::shared));
  REQUIRE_FALSE(lock.acquire(2, {0, 8}, Mode::exclusive));
  CHECK(lock.release(1) == Owners{5, 3, 4});
  CHECK(lock.release(3).empty());
  CHECK(lock.release(4).empty());
  CHECK(lock.release(5) == Owners{2});
}

TEST_CASE("a waiting entry that is released lets nobody overtake the older ones") {
  RangeLock lock;
  REQUIRE(lock.acquire(1, {0, 8}, Mode::exclusive));
  REQUIRE_FALSE(lock.acquire(2, {0, 8}, Mode::exclusive));
  REQUIRE_FALSE(lock.acquire(3, {4, 6}, Mode::exclusive));
  CHECK(lock.release(2).empty());
  CHECK(lock.release(1) == Owners{3});
  CHECK(lock.release(3).empty());
  CHECK(lock.acquire(4, {0, 8}, Mode::exclusive));
}
