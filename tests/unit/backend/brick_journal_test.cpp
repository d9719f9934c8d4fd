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

struct Power {
  std::uint64_t calls_left = ~std::uint64_t{0};
  std::uint64_t calls = 0;

  void count() {
    ++calls;
    if (calls_left-- == 0) throw PowerCut{};
  }
};

/// A disk with a cache: of what was not synced, each sector may be lost. The power goes at a
/// certain call.
class CuttableFile final : public PartFile {
 public:
  explicit CuttableFile(Power& power) : power_{power} {}

  std::uint64_t size() const override { return cached.size(); }
  std::uint64_t room() const override { return most; }
  int read(std::uint64_t offset, std::span<std::byte> bytes) override {
    if (offset + bytes.size() > cached.size()) return EIO;
    std::memcpy(bytes.data(), cached.data() + offset, bytes.size());
    return 0;
  }
  int write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    cached.resize(std::max<std::size_t>(cached.size(), offset + bytes.size()));
    std::memcpy(cached.data() + offset, bytes.data(), bytes.size());
    power_.count();
    return 0;
  }
  int sync() override {
    power_.count();
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

  std::uint64_t most = ~std::uint64_t{0};
  std::vector<std::byte> cached;
  std::vector<std::byte> durable;

 private:
  Power& power_;
};

/// The tier of a test: only its mark. So the tier of as many places needs no memory.
class MarkFile final : public PartFile {
 public:
  MarkFile(Power& power, std::uint32_t places) : begin_{mark_at(places)}, mark{power} {}

  std::uint64_t size() const override { return begin_ + mark.size(); }
  std::uint64_t room() const override {
    return mark.most == ~std::uint64_t{0} ? mark.most : begin_ + mark.most;
  }
  int read(std::uint64_t offset, std::span<std::byte> bytes) override {
    return offset < begin_ ? EIO : mark.read(offset - begin_, bytes);
  }
  int write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return offset < begin_ ? EIO : mark.write(offset - begin_, bytes);
  }
  int sync() override { return mark.sync(); }

 private:
  std::uint64_t begin_;

 public:
  CuttableFile mark;
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

/// A journal's file and its tier, which lose their power together.
struct Disks {
  Power power;
  CuttableFile file{power};
  MarkFile tier{power, kPlaces};

  void cut(std::mt19937& random) {
    file.cut(random);
    tier.mark.cut(random);
  }
};

/// As a server opens it.
int opened(Journal& journal, Match expected = Match::yes) {
  if (const int error = journal.open(kPlaces); error != 0) return error;
  CHECK(journal.match() == expected);
  return journal.begin();
}

constexpr std::uint64_t kCallsToCreate = 8;  ///< the mark, the map, the superblock, the mark
constexpr unsigned kBatches = 20;            ///< until the power goes

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

Run run(Disks& disks, unsigned seed, unsigned batches) {
  Run result;
  Changes changes{seed};
  try {
    Journal journal{disks.file, disks.tier};
    if (journal.create(kPlaces, {1, 2, 3}) != 0) FAIL("create");
    for (unsigned i = 0; i < batches; ++i) {
      result.under_way = changes.batch();
      if (journal.append(result.under_way) != 0) FAIL("append");
      for (const Record& record : result.under_way) apply(result.acknowledged, record);
      result.under_way.clear();
    }
  } catch (const PowerCut&) {
  }
  disks.power.calls_left = ~std::uint64_t{0};
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
  Disks disks;
  const Run whole = run(disks, 7, 500);
  for (int i = 0; i < 3; ++i) {
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
    CHECK(state_of(journal) == whole.acknowledged);
    CHECK(journal.uuid()[2] == 3);
  }
}

/// No block is lost or has two places.
void check_cut(unsigned seed, std::uint64_t call, std::mt19937& random) {
  Disks disks;
  disks.power.calls_left = call;
  const Run before = run(disks, seed, kBatches);
  disks.cut(random);
  Journal journal{disks.file, disks.tier};
  REQUIRE(opened(journal) == 0);
  const State first = state_of(journal);
  CHECK(is_possible(first, before));
  std::set<Place> places;
  for (const auto& [block, where] : first) places.insert(where.first);
  CHECK(places.size() == first.size());
  // Blocks that were found stay, and no older record comes back behind newer ones.
  Journal again{disks.file, disks.tier};
  REQUIRE(opened(again) == 0);
  CHECK(state_of(again) == first);
}

TEST_CASE("brick journal: after a power cut at any call, what was acknowledged is there") {
  std::mt19937 random{42};
  unsigned cuts = 0;
  for (unsigned seed = 1; cuts < 1000; ++seed) {
    Disks counted;
    run(counted, seed, kBatches);
    for (std::uint64_t call = kCallsToCreate; call < counted.power.calls; ++call, ++cuts)
      check_cut(seed, call, random);
  }
}

TEST_CASE("brick journal: after a power cut in the first start there is a journal, or may be one") {
  std::mt19937 random{3};
  for (std::uint64_t call = 0; call < 10 * kCallsToCreate; ++call) {
    Disks disks;
    disks.power.calls_left = call % kCallsToCreate;
    run(disks, 1, 0);
    disks.cut(random);
    Journal journal{disks.file, disks.tier};
    const int error = journal.open(kPlaces);
    std::optional<Mark> mark;
    REQUIRE(read_mark(disks.tier, kPlaces, mark) == 0);
    const bool begun = mark ? mark->version == 1 && mark->to_follow : disks.file.size() == 0;
    CHECK((error == 0 ? journal.match() == Match::yes : begun));
  }
}

TEST_CASE("brick journal: records of a torn batch do not come back behind new ones") {
  std::mt19937 random{5};
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Disks disks;
    disks.power.calls_left = kCallsToCreate + 4 + seed % 16;
    run(disks, seed, 60);
    disks.cut(random);
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
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
    Journal again{disks.file, disks.tier};
    REQUIRE(opened(again) == 0);
    CHECK(state_of(again) == state);
  }
}

TEST_CASE("brick journal: an epoch outlives an end, and nothing else") {
  Disks disks;
  {
    Journal journal{disks.file, disks.tier};
    REQUIRE(journal.create(kPlaces, {}) == 0);
    CHECK(journal.last_epoch() == 0);
    REQUIRE(journal.append({{Record::Change::alloc, 1, 7}}) == 0);
    REQUIRE(journal.end(55) == 0);
  }
  {
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
    CHECK(journal.last_epoch() == 55);
    CHECK(state_of(journal).size() == 1);
  }
  Journal journal{disks.file, disks.tier};
  REQUIRE(opened(journal) == 0);
  CHECK(journal.last_epoch() == 0);
}

TEST_CASE("brick journal: what is none, or has too many places, is refused") {
  Disks empty;
  CHECK(Journal{empty.file, empty.tier}.open(kPlaces) == EBADMSG);
  Disks disks;
  run(disks, 1, 3);
  CHECK(Journal{disks.file, disks.tier}.open(kPlaces - 1) == ENOSPC);
  Journal journal{disks.file, disks.tier};
  CHECK(journal.open(kPlaces + 5) == 0);
  CHECK(journal.places() == kPlaces);
  const std::vector<std::byte> damage(2 * 4096);
  REQUIRE(disks.file.write(0, damage) == 0);
  CHECK(Journal{disks.file, disks.tier}.open(kPlaces + 5) == EBADMSG);
}

TEST_CASE("brick journal: a damaged map is told, and one that was cut off") {
  Disks disks;
  run(disks, 1, 3);
  const auto whole = disks.file.cached;
  const std::vector<std::byte> damage(4 * 4096 + 8192, std::byte{0xEE});
  REQUIRE(disks.file.write(2 * 4096, damage) == 0);
  CHECK(Journal{disks.file, disks.tier}.open(kPlaces) == EBADMSG);
  disks.file.cached.assign(whole.begin(), whole.begin() + 2 * 4096);
  CHECK(Journal{disks.file, disks.tier}.open(kPlaces) == EBADMSG);
}

TEST_CASE("brick journal: a look changes neither file") {
  Disks disks;
  run(disks, 1, 3);
  const std::uint64_t calls = disks.power.calls;
  Journal journal{disks.file, disks.tier};
  REQUIRE(journal.open(kPlaces) == 0);
  CHECK(journal.match() == Match::yes);
  CHECK(journal.append({}) == EBADF);
  CHECK(journal.end(5) == EBADF);
  CHECK(disks.power.calls == calls);
}

using Contents = std::vector<std::byte>;

Match match_of(Disks& disks, const Contents& journal, const Contents& mark) {
  disks.file.cached = journal;
  disks.tier.mark.cached = mark;
  Journal read{disks.file, disks.tier};
  REQUIRE(read.open(kPlaces) == 0);
  return read.match();
}

TEST_CASE("brick journal: files of two different starts or ends do not match") {
  Disks disks;
  run(disks, 1, 3);
  std::vector<std::pair<Contents, Contents>> moments;
  for (unsigned i = 0; i < 6; ++i) {
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
    moments.emplace_back(disks.file.cached, disks.tier.mark.cached);
    REQUIRE(journal.end(7) == 0);
    moments.emplace_back(disks.file.cached, disks.tier.mark.cached);
  }
  for (std::size_t journal = 0; journal < moments.size(); ++journal) {
    for (std::size_t tier = 0; tier < moments.size(); ++tier) {
      const Match expected = journal == tier  ? Match::yes
                             : journal < tier ? Match::older_journal
                                              : Match::older_tier;
      CHECK(match_of(disks, moments[journal].first, moments[tier].second) == expected);
    }
    CHECK(match_of(disks, moments[journal].first, {}) == Match::unmarked);
  }
}

TEST_CASE("brick journal: a journal from before its log was full does not match") {
  Disks disks;
  Journal journal{disks.file, disks.tier};
  REQUIRE(journal.create(kPlaces, {1}) == 0);
  const Contents early = disks.file.cached;
  Changes changes{3};
  for (unsigned records = 0; records <= 2048;) {
    const auto batch = changes.batch();
    records += static_cast<unsigned>(batch.size());
    REQUIRE(journal.append(batch) == 0);
  }
  CHECK(match_of(disks, early, Contents{disks.tier.mark.cached}) == Match::older_journal);
}

TEST_CASE("brick journal: the tier of another brick is a stranger") {
  Disks one;
  Disks other;
  REQUIRE(Journal{one.file, one.tier}.create(kPlaces, {1}) == 0);
  REQUIRE(Journal{other.file, other.tier}.create(kPlaces, {2}) == 0);
  Journal mixed{one.file, other.tier};
  REQUIRE(mixed.open(kPlaces) == 0);
  CHECK(mixed.match() == Match::stranger);
}

/// A device that ends behind its last place, as every tier of older servers.
TEST_CASE("brick journal: a tier without room has no mark, and gets one when it has grown") {
  Disks disks;
  disks.tier.mark.most = 0;
  const Run whole = run(disks, 7, 50);
  CHECK(disks.tier.mark.cached.empty());
  const Contents unmarked = disks.file.cached;
  disks.tier.mark.most = kMarkSize;
  {
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
    CHECK(state_of(journal) == whole.acknowledged);
  }
  const Contents marked{disks.file.cached};
  const Contents mark{disks.tier.mark.cached};
  CHECK(match_of(disks, marked, mark) == Match::yes);
  CHECK(match_of(disks, marked, {}) == Match::unmarked);
  CHECK(match_of(disks, unmarked, mark) == Match::older_journal);
}

/// Older servers skip superblocks of a format that they do not know.
int open_as_older_server(const Disks& disks) {
  Disks shown;
  shown.file.cached = disks.file.cached;
  for (const std::uint64_t half : {0, 1}) {
    std::uint32_t format = 0;
    REQUIRE(shown.file.read(half * 4096 + 8, std::as_writable_bytes(std::span{&format, 1})) == 0);
    const std::vector<std::byte> blank(4096);
    if (format != 2) REQUIRE(shown.file.write(half * 4096, blank) == 0);
  }
  return Journal{shown.file, shown.tier}.open(kPlaces);
}

TEST_CASE("brick journal: older servers find no map in the journal of a marked tier") {
  Disks disks;
  disks.tier.mark.most = 0;
  run(disks, 7, 50);
  CHECK(open_as_older_server(disks) == 0);
  disks.tier.mark.most = kMarkSize;
  Journal journal{disks.file, disks.tier};
  REQUIRE(opened(journal) == 0);
  CHECK(open_as_older_server(disks) == EBADMSG);
}

TEST_CASE("brick journal: while its server runs, a tier that grows stays without a mark") {
  Disks disks;
  disks.tier.mark.most = 0;
  Journal journal{disks.file, disks.tier};
  REQUIRE(journal.create(kPlaces, {1}) == 0);
  disks.tier.mark.most = kMarkSize;
  REQUIRE(journal.end(7) == 0);
  CHECK(disks.tier.mark.cached.empty());
  CHECK(open_as_older_server(disks) == 0);
}

TEST_CASE("brick journal: after a power cut in the start that marks a tier, both match") {
  std::mt19937 random{9};
  constexpr std::uint64_t kCalls = 2 * kCallsToCreate;
  for (std::uint64_t call = 0; call < 10 * kCalls; ++call) {
    Disks disks;
    disks.tier.mark.most = 0;
    const Run whole = run(disks, 7, kBatches);
    disks.tier.mark.most = kMarkSize;
    disks.power.calls_left = call % kCalls;
    try {
      Journal journal{disks.file, disks.tier};
      if (opened(journal) == 0) FAIL("there are fewer calls");
    } catch (const PowerCut&) {
    }
    disks.power.calls_left = ~std::uint64_t{0};
    disks.cut(random);
    Journal journal{disks.file, disks.tier};
    REQUIRE(opened(journal) == 0);
    CHECK(state_of(journal) == whole.acknowledged);
    CHECK(open_as_older_server(disks) == EBADMSG);
  }
}

}  // namespace
}  // namespace rnbd::brick_journal_test
