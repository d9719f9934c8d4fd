// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "bridge/backend/brick/journal.hpp"

using namespace rnbd::brick;

namespace rnbd::brick_journal_test {
namespace {

struct PowerCut {};

/// A disk with a cache: of what was not synced, each sector may be lost. The power goes at a
/// certain call.
class CuttableFile final : public MetaFile {
 public:
  std::uint64_t size() const override { return cached.size(); }
  int read(std::uint64_t offset, std::span<std::byte> bytes) override {
    if (offset + bytes.size() > cached.size()) return EIO;
    std::memcpy(bytes.data(), cached.data() + offset, bytes.size());
    return 0;
  }
  int write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    cached.resize(std::max<std::size_t>(cached.size(), offset + bytes.size()));
    std::memcpy(cached.data() + offset, bytes.data(), bytes.size());
    count();
    return 0;
  }
  int sync() override {
    count();
    durable = cached;
    return 0;
  }
  void cut(std::mt19937& random) {
    durable.resize(cached.size());
    for (std::size_t at = 0; at < cached.size(); at += 512) {
      const std::size_t part = std::min<std::size_t>(512, cached.size() - at);
      if (random() % 2 == 0) std::memcpy(durable.data() + at, cached.data() + at, part);
    }
    cached = durable;
  }

  std::uint64_t calls_left = ~std::uint64_t{0};
  std::uint64_t calls = 0;

 private:
  void count() {
    ++calls;
    if (calls_left-- == 0) throw PowerCut{};
  }
  std::vector<std::byte> cached;
  std::vector<std::byte> durable;
};

using State = std::map<Block, std::pair<Place, bool>>;

State state_of(const Journal& journal) {
  State state;
  for (const Kept& kept : journal.kept()) state[kept.block] = {kept.place, kept.stored};
  return state;
}

void apply(State& state, const Record& record) {
  if (record.change == Record::Change::alloc) state[record.block] = {record.place, false};
  if (record.change == Record::Change::free) state.erase(record.block);
  if (record.change == Record::Change::stored) state[record.block].second = true;
}

constexpr std::uint32_t kPlaces = 300;
constexpr unsigned kBatches = 20;  ///< until the power goes

/// Changes that are possible one after the other.
class Changes {
 public:
  explicit Changes(unsigned seed) : random_{seed} {}

  std::vector<Record> batch() {
    std::vector<Record> records;
    const std::size_t size = random_() % 40 == 0 ? 2500 : 1 + random_() % 30;
    while (records.size() < size) {
      const Record record = next();
      apply(state_, record);
      records.push_back(record);
    }
    return records;
  }

 private:
  Record next() {
    const auto place = static_cast<Place>(random_() % kPlaces);
    const auto found = std::find_if(state_.begin(), state_.end(),
                                    [&](const auto& item) { return item.second.first == place; });
    if (found == state_.end()) return {Record::Change::alloc, place, next_block_++};
    const bool stores = !found->second.second && random_() % 2 == 0;
    return {stores ? Record::Change::stored : Record::Change::free, place, found->first};
  }

  std::mt19937 random_;
  State state_;
  Block next_block_ = 1;
};

/// Runs until the power goes; what must be there then, and what may.
struct Run {
  State acknowledged;
  std::vector<Record> under_way;
};

Run run(CuttableFile& file, unsigned seed, unsigned batches) {
  Run result;
  Changes changes{seed};
  try {
    Journal journal{file};
    if (journal.create(kPlaces, {1, 2, 3}) != 0) FAIL("create");
    for (unsigned i = 0; i < batches; ++i) {
      result.under_way = changes.batch();
      if (journal.append(result.under_way) != 0) FAIL("append");
      for (const Record& record : result.under_way) apply(result.acknowledged, record);
      result.under_way.clear();
    }
  } catch (const PowerCut&) {
  }
  file.calls_left = ~std::uint64_t{0};
  return result;
}

bool is_possible(const State& found, const Run& run) {
  State state = run.acknowledged;
  if (found == state) return true;
  for (const Record& record : run.under_way) {
    apply(state, record);
    if (found == state) return true;
  }
  return false;
}

TEST_CASE("brick journal: what was appended is there again, also after many checkpoints") {
  CuttableFile file;
  const Run whole = run(file, 7, 500);
  for (int i = 0; i < 3; ++i) {
    Journal journal{file};
    REQUIRE(journal.open(kPlaces) == 0);
    CHECK(state_of(journal) == whole.acknowledged);
    CHECK(journal.uuid()[2] == 3);
  }
}

/// No block is lost or has two places.
void check_cut(unsigned seed, std::uint64_t call, std::mt19937& random) {
  CuttableFile file;
  file.calls_left = call;
  const Run before = run(file, seed, kBatches);
  file.cut(random);
  Journal journal{file};
  REQUIRE(journal.open(kPlaces) == 0);
  const State first = state_of(journal);
  CHECK(is_possible(first, before));
  std::set<Place> places;
  for (const auto& [block, where] : first) places.insert(where.first);
  CHECK(places.size() == first.size());
  // Blocks that were found stay, and no older record comes back behind newer ones.
  Journal again{file};
  REQUIRE(again.open(kPlaces) == 0);
  CHECK(state_of(again) == first);
}

TEST_CASE("brick journal: after a power cut at any call, what was acknowledged is there") {
  std::mt19937 random{42};
  unsigned cuts = 0;
  for (unsigned seed = 1; cuts < 1000; ++seed) {
    CuttableFile counted;
    run(counted, seed, kBatches);
    for (std::uint64_t call = 4; call < counted.calls; ++call, ++cuts)
      check_cut(seed, call, random);
  }
}

TEST_CASE("brick journal: records of a torn batch do not come back behind new ones") {
  std::mt19937 random{5};
  for (unsigned seed = 1; seed <= 200; ++seed) {
    CuttableFile file;
    file.calls_left = 8 + seed % 16;
    run(file, seed, 60);
    file.cut(random);
    Journal journal{file};
    REQUIRE(journal.open(kPlaces) == 0);
    State state = state_of(journal);
    for (Block block = 1'000'000; block < 1'000'010; ++block) {
      Place place = 0;
      while (std::any_of(state.begin(), state.end(),
                         [&](const auto& item) { return item.second.first == place; }))
        ++place;
      const Record record{Record::Change::alloc, place, block};
      REQUIRE(journal.append({record}) == 0);
      apply(state, record);
    }
    Journal again{file};
    REQUIRE(again.open(kPlaces) == 0);
    CHECK(state_of(again) == state);
  }
}

TEST_CASE("brick journal: an epoch outlives an end, and nothing else") {
  CuttableFile file;
  {
    Journal journal{file};
    REQUIRE(journal.create(kPlaces, {}) == 0);
    CHECK(journal.last_epoch() == 0);
    REQUIRE(journal.append({{Record::Change::alloc, 1, 7}}) == 0);
    REQUIRE(journal.end(55) == 0);
  }
  {
    Journal journal{file};
    REQUIRE(journal.open(kPlaces) == 0);
    CHECK(journal.last_epoch() == 55);
    CHECK(state_of(journal).size() == 1);
  }
  Journal journal{file};
  REQUIRE(journal.open(kPlaces) == 0);
  CHECK(journal.last_epoch() == 0);
}

TEST_CASE("brick journal: what is none, or has too many places, is refused") {
  CuttableFile empty;
  CHECK(Journal{empty}.open(kPlaces) == EBADMSG);
  CuttableFile file;
  run(file, 1, 3);
  CHECK(Journal{file}.open(kPlaces - 1) == ENOSPC);
  Journal journal{file};
  CHECK(journal.open(kPlaces + 5) == 0);
  CHECK(journal.places() == kPlaces);
  const std::vector<std::byte> damage(2 * 4096);
  REQUIRE(file.write(0, damage) == 0);
  CHECK(Journal{file}.open(kPlaces + 5) == EBADMSG);
}

TEST_CASE("brick journal: a damaged map is told") {
  CuttableFile file;
  run(file, 1, 3);
  const std::vector<std::byte> damage(4 * 4096 + 8192, std::byte{0xEE});
  REQUIRE(file.write(2 * 4096, damage) == 0);
  CHECK(Journal{file}.open(kPlaces) == EBADMSG);
}

}  // namespace
}  // namespace rnbd::brick_journal_test
