// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {
namespace {

constexpr unsigned kNoClient = ~0U;

/// Those of the values that a read may have seen as `seen`.
std::set<std::uint64_t> seen_as(std::uint64_t seen, const std::set<std::uint64_t>& values) {
  std::set<std::uint64_t> same;
  for (const std::uint64_t value : values)
    if (seen == kUnknown || value == seen || (seen == kZeroes && is_hole(value)))
      same.insert(value);
  return same;
}

}  // namespace

void MirrorChecker::begin(unsigned client, std::uint64_t operation, mirror::Range range,
                          std::uint64_t value) {
  under_way_[{client, operation}] = {range, value};
  change_beside_reads(client, range);
  for (auto sector = range.begin; sector < range.end; ++sector) {
    lasting_[sector].insert(value);
    for (auto& [id, flush] : flushes_) flush[sector].insert(value);
  }
}

void MirrorChecker::begin_flush(unsigned client, std::uint64_t operation) {
  Possible& after = flushes_[{client, operation}] = possible_;
  for (const auto& [id, write] : under_way_)
    for (auto sector = write.range.begin; sector < write.range.end; ++sector)
      after[sector].insert(write.value);
}

void MirrorChecker::begin_read(unsigned client, std::uint64_t operation) {
  reads_[{client, operation}].served = client == newest_;
}

/// Those of all but this client show nothing newer. They may have waited for a write of their own
/// client, which all had before.
void MirrorChecker::supersede_reads(unsigned client) {
  for (auto& [id, read] : reads_) {
    if (id.first == client)
      read.served = true;
    else if (read.served && read.before.empty())
      read.before = possible_;
  }
  for (const auto& [id, write] : under_way_)
    if (id.first == client) change_beside_reads(client, write.range);
}

void MirrorChecker::change_beside_reads(unsigned client, mirror::Range range) {
  for (auto& [id, read] : reads_) {
    if (id.first == client || read.before.empty()) continue;
    for (auto sector = range.begin; sector < range.end; ++sector) read.changed.insert(sector);
  }
}

void MirrorChecker::flushed(unsigned client, std::uint64_t operation) {
  ++operations_;
  not_superseded(client);
  lasting_ = flushes_.at({client, operation});
  flushes_.erase({client, operation});
}

void MirrorChecker::blackout() {
  possible_ = lasting_;
  under_way_.clear();
  flushes_.clear();
  reads_.clear();
}

/// Changes of older clients may have happened or not; from now on that does not change any more.
void MirrorChecker::attached(unsigned client) {
  newest_ = client;
  for (auto write = under_way_.begin(); write != under_way_.end();) {
    if (write->first.first == client) {
      ++write;
      continue;
    }
    for (auto sector = write->second.range.begin; sector < write->second.range.end; ++sector)
      possible_[sector].insert(write->second.value);
    write = under_way_.erase(write);
  }
  supersede_reads(client);
}

void MirrorChecker::forced(const Values& content, const Values& durable) {
  supersede_reads(kNoClient);
  for (std::size_t sector = 0; sector < possible_.size(); ++sector) {
    possible_[sector] = {content[sector]};
    lasting_[sector] = {content[sector], durable[sector]};
  }
  under_way_.clear();
  flushes_.clear();
  sectors_ = kSectors;  // that member may know nothing of growth
}

void MirrorChecker::sized(std::uint64_t sectors, const Possible& found) {
  if (sectors < sectors_) throw MirrorViolation("users see a disk that has become smaller");
  for (std::uint64_t sector = sectors_; sector < sectors; ++sector) {
    possible_[sector] = lasting_[sector] = found[sector];
    for (auto& [id, flush] : flushes_) flush[sector] = found[sector];
  }
  sectors_ = sectors;
}

void MirrorChecker::not_superseded(unsigned client) const {
  if (client != newest_) throw MirrorViolation("a superseded client reads or acknowledges");
}

void MirrorChecker::wrote(unsigned client, std::uint64_t operation) {
  ++operations_;
  not_superseded(client);
  const Write write = under_way_.at({client, operation});
  under_way_.erase({client, operation});
  for (auto sector = write.range.begin; sector < write.range.end; ++sector)
    possible_[sector] = {write.value};
}

void MirrorChecker::gave_up(unsigned client, std::uint64_t operation) {
  reads_.erase({client, operation});
  const auto write = under_way_.extract({client, operation});
  if (!write) return;
  const mirror::Range range = write.mapped().range;
  for (auto sector = range.begin; sector < range.end; ++sector)
    possible_[sector].insert(write.mapped().value);
}

/// True if it is answered later than another client came, with a value of before.
bool MirrorChecker::read_before(unsigned client, std::uint64_t operation, mirror::Range range,
                                const Values& seen) {
  const auto read = reads_.extract({client, operation});
  if (!read || read.mapped().before.empty()) return false;
  for (auto sector = range.begin; sector < range.end; ++sector)
    if (seen_as(seen[sector - range.begin], read.mapped().before[sector]).empty()) return false;
  return true;
}

void MirrorChecker::read(unsigned client, std::uint64_t operation, mirror::Range range,
                         const Values& seen) {
  ++operations_;
  if (read_before(client, operation, range, seen)) return;
  not_superseded(client);
  for (auto sector = range.begin; sector < range.end; ++sector) {
    const std::uint64_t value = seen[sector - range.begin];
    auto left = seen_as(value, possible_[sector]);
    if (left.empty()) at_end(sector, value);
    possible_[sector] = std::move(left);
    // A read that is older does not show another one of those that were possible.
    for (auto& [id, older] : reads_) {
      if (older.before.empty() || older.changed.contains(sector)) continue;
      auto before = seen_as(value, older.before[sector]);
      if (!before.empty()) older.before[sector] = std::move(before);
    }
  }
}

void MirrorChecker::at_end(std::uint64_t sector, std::uint64_t value) const {
  if (possible_[sector].contains(value)) return;
  throw MirrorViolation("sector " + std::to_string(sector) + " shows value " +
                        std::to_string(value) + ", and the oldest possible one is " +
                        std::to_string(*possible_[sector].begin()));
}

}  // namespace sim
