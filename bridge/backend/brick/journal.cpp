// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/backend/brick/checksum.hpp"

namespace rnbd::brick {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kLogRecords = 2048;
constexpr std::uint64_t kMagic = 0x314B'4352'4244'4E52;  // "RNBDBRK1"
constexpr std::uint32_t kFormatUnmarked = 2;             ///< the tier has no mark
constexpr std::uint32_t kFormat = 3;

// In the byte order of this machine, as everything that never leaves it.
struct Superblock {
  std::uint64_t magic = kMagic;
  std::uint32_t format = kFormat;
  std::uint32_t places = 0;
  std::uint64_t version = 0;
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t first = 0;
  std::uint64_t ended_epoch = 0;  ///< 0: the server has not ended, or lost something
  std::uint32_t map_crc = 0;
  std::uint32_t crc = 0;  ///< of all before
};
static_assert(sizeof(Superblock) == 64);

struct MapEntry {
  std::uint64_t block = 0;
  std::uint32_t state = 0;  ///< 0 free, 1 allocated, 2 and stored
  std::uint32_t reserved = 0;
};
static_assert(sizeof(MapEntry) == 16);

struct LogRecord {
  std::uint64_t sequence = 0;
  std::uint8_t change = 0;
  std::uint8_t flags = 0;
  std::uint16_t count = 1;
  std::uint32_t place = 0;
  std::uint64_t block = 0;
  std::uint32_t reserved = 0;
  std::uint32_t crc = 0;  ///< of all before
};
static_assert(sizeof(LogRecord) == 32);

}  // namespace

std::uint64_t Journal::map_bytes() const {
  return (homes_.size() * sizeof(MapEntry) + kPage - 1) / kPage * kPage;
}

std::uint64_t Journal::map_at(unsigned half) const { return 2 * kPage + half * map_bytes(); }

std::uint64_t Journal::log_at(unsigned half) const {
  return 2 * kPage + 2 * map_bytes() + half * kLogRecords * sizeof(LogRecord);
}

int Journal::create(std::uint32_t places, const std::array<std::uint8_t, 16>& uuid) {
  uuid_ = uuid;
  homes_.assign(places, {});
  marks_ = has_mark_room(tier_, places);
  return checkpoint();
}

/// Takes over a superblock that is whole and newer than the other one.
bool Journal::take(const std::array<std::byte, kPage>& bytes, std::uint64_t& newest) {
  Superblock block;
  std::memcpy(&block, bytes.data(), sizeof(block));
  const bool known = block.format == kFormat || block.format == kFormatUnmarked;
  if (block.magic != kMagic || !known || block.crc != crc_before(block)) return false;
  if (block.version <= newest) return true;
  newest = version_ = block.version;
  homes_.assign(block.places, {});
  uuid_ = block.uuid;
  first_ = block.first;
  map_crc_ = block.map_crc;
  last_epoch_ = block.ended_epoch;
  marks_ = block.format == kFormat;
  return true;
}

int Journal::open(std::uint32_t places) {
  std::uint64_t newest = 0;
  bool found = false;
  for (const std::uint64_t half : {0, 1}) {
    std::array<std::byte, kPage> bytes{};
    if (file_.size() < (half + 1) * kPage) continue;
    if (const int error = file_.read(half * kPage, bytes); error != 0) return error;
    found = take(bytes, newest) || found;
  }
  if (!found) return EBADMSG;
  if (homes_.size() > places) return ENOSPC;
  if (const int error = read_map(map_crc_); error != 0) return error;
  if (const int error = replay(); error != 0) return error;
  broken_ = EBADF;
  return read_mark(tier_, this->places(), mark_);
}

/// Older servers open the half that has no mark, so with the first mark both halves are written.
int Journal::begin() {
  broken_ = 0;
  const bool marked = marks_;
  marks_ = has_mark_room(tier_, places());
  const int error = checkpoint();
  return error == 0 && marks_ && !marked ? checkpoint() : error;
}

int Journal::read_map(std::uint32_t crc) {
  std::vector<MapEntry> entries(homes_.size());
  const auto bytes = std::as_writable_bytes(std::span{entries});
  if (file_.size() < map_at(version_ & 1) + bytes.size()) return EBADMSG;
  if (const int error = file_.read(map_at(version_ & 1), bytes); error != 0) return error;
  if (crc_of(bytes.data(), bytes.size()) != crc) return EBADMSG;
  for (std::size_t place = 0; place < entries.size(); ++place) {
    const MapEntry& entry = entries[place];
    homes_[place] = {entry.block, entry.state != 0, entry.state == 2};
  }
  return 0;
}

int Journal::replay() {
  std::vector<LogRecord> log(kLogRecords);
  const std::uint64_t at = log_at(version_ & 1);
  if (file_.size() <= at) return 0;
  const std::uint64_t there =
      std::min<std::uint64_t>(kLogRecords, (file_.size() - at) / sizeof(LogRecord));
  const auto bytes = std::as_writable_bytes(std::span{log}.first(there));
  if (const int error = file_.read(at, bytes); error != 0) return error;
  for (std::uint64_t i = 0; i < there; ++i) {
    const LogRecord& record = log[i];
    if (record.crc != crc_before(record) || record.sequence != first_ + i) break;
    const int error =
        apply({static_cast<Record::Change>(record.change), record.place, record.block});
    if (error != 0) return error;
  }
  return 0;
}

int Journal::apply(const Record& record) {
  if (record.place >= homes_.size()) return EBADMSG;
  Home& home = homes_[record.place];
  const bool mine = home.taken && home.block == record.block;
  switch (record.change) {
    case Record::Change::alloc:
      if (home.taken) return EBADMSG;
      home = {record.block, true, false};
      return 0;
    case Record::Change::free:
      if (!mine) return EBADMSG;
      home = {};
      return 0;
    case Record::Change::stored:
      if (mine) home.stored = true;
      return 0;
  }
  return EBADMSG;
}

/// The mark goes before and behind the superblock, see mark.hpp.
int Journal::checkpoint(std::uint64_t ended_epoch) {
  const std::uint64_t next = version_ + 1;
  int error = marks_ ? write_mark(tier_, places(), {uuid_, next, true}) : 0;
  if (error == 0) error = write_superblock(ended_epoch);
  if (error == 0 && marks_) error = write_mark(tier_, places(), {uuid_, next, false});
  return error == 0 ? 0 : broken_ = error;
}

/// The whole map goes to the other half. Sequences leave a gap, so that no record of an older log
/// continues this one.
int Journal::write_superblock(std::uint64_t ended_epoch) {
  std::vector<MapEntry> entries(homes_.size());
  for (std::size_t place = 0; place < entries.size(); ++place) {
    const Home& home = homes_[place];
    entries[place] = {home.block, home.taken ? (home.stored ? 2U : 1U) : 0U, 0};
  }
  const auto bytes = std::as_bytes(std::span{entries});
  Superblock block;
  block.format = marks_ ? kFormat : kFormatUnmarked;
  block.places = places();
  block.version = version_ + 1;
  block.uuid = uuid_;
  block.first = first_ + kLogRecords;
  block.ended_epoch = ended_epoch;
  block.map_crc = crc_of(bytes.data(), bytes.size());
  block.crc = crc_before(block);
  const unsigned half = block.version & 1;
  std::array<std::byte, kPage> page{};
  std::memcpy(page.data(), &block, sizeof(block));
  int error = file_.write(map_at(half), bytes);
  if (error == 0) error = file_.sync();
  if (error == 0) error = file_.write(half * kPage, page);
  if (error == 0) error = file_.sync();
  if (error != 0) return error;
  version_ = block.version;
  first_ = block.first;
  written_ = 0;
  return 0;
}

int Journal::write_log(const std::vector<Record>& records) {
  std::vector<LogRecord> log;
  log.reserve(records.size());
  for (const Record& record : records) {
    LogRecord entry;
    entry.sequence = first_ + written_ + log.size();
    entry.change = static_cast<std::uint8_t>(record.change);
    entry.place = record.place;
    entry.block = record.block;
    entry.crc = crc_before(entry);
    log.push_back(entry);
  }
  const std::uint64_t at = log_at(version_ & 1) + written_ * sizeof(LogRecord);
  int error = file_.write(at, std::as_bytes(std::span{log}));
  if (error == 0) error = file_.sync();
  if (error != 0) return broken_ = error;
  written_ += static_cast<std::uint32_t>(log.size());
  return 0;
}

int Journal::append(const std::vector<Record>& records) {
  if (broken_ != 0) return broken_;
  const bool fits = written_ + records.size() <= kLogRecords;
  if (fits) {
    if (const int error = write_log(records); error != 0) return error;
  }
  for (const Record& record : records)
    if (const int error = apply(record); error != 0) return broken_ = error;
  return fits ? 0 : checkpoint();
}

int Journal::end(std::uint64_t epoch) { return broken_ != 0 ? broken_ : checkpoint(epoch); }

std::vector<Kept> Journal::kept() const {
  std::vector<Kept> kept;
  for (std::size_t place = 0; place < homes_.size(); ++place) {
    const Home& home = homes_[place];
    if (home.taken) kept.push_back({home.block, static_cast<Place>(place), home.stored});
  }
  return kept;
}

}  // namespace rnbd::brick
