// SPDX-License-Identifier: BSD-3-Clause
// The truth about one disk: every value each sector ever had, and which of them is durable.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/knobs.hpp"
#include "tests/sim/pattern.hpp"

namespace sim {

/// An access to a range.
enum class Action : std::uint8_t {
  read,
  write,
  zero_data,  ///< a write of zeroes
  flush,
  discard,
  zero,  ///< without data
  crash,
};

/// Whether the disk's content differs afterwards.
constexpr bool is_change(Action action) {
  return action != Action::read && action != Action::flush;
}

const char* to_string(Action action);

/// Outlives the servers that export it.
class Disk {
 public:
  struct Entry {
    Stamp value = 0;
    Action action = Action::write;
  };
  /// Positions are indexes into `history`.
  struct Sector {
    std::vector<Entry> history{Entry{}};
    std::uint32_t completed = 0;  ///< its operation was reported as finished by the backend
    std::uint32_t durable = 0;    ///< survives a crash
    std::uint32_t acknowledged = 0;
    std::uint64_t newest = 0;    ///< the change asked for last of those that were acknowledged
    std::uint32_t promised = 0;  ///< a client was told that this survives
    /// Losses of power: what came after the first position and before the second is gone.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> losses;

    std::uint32_t last() const { return static_cast<std::uint32_t>(history.size() - 1); }
    bool lost(std::uint32_t position) const;
  };

  /// `slot`: which of the exports it is when nothing has taken its place.
  Disk(unsigned number, unsigned slot, const DiskKnobs& knobs);

  const std::string& name() const { return name_; }  ///< of the export
  unsigned number() const { return number_; }
  unsigned slot() const { return slot_; }
  const DiskKnobs& knobs() const { return knobs_; }
  bool writable() const { return !knobs_.backend_read_only && !knobs_.export_read_only; }
  std::uint64_t sectors() const { return sectors_.size(); }
  Sector& sector(std::uint64_t i) { return sectors_[i]; }
  const Sector& sector(std::uint64_t i) const { return sectors_[i]; }
  /// Bytes of a sector that exist; less than all only at the end.
  std::size_t valid_bytes(std::uint64_t i) const;
  Stamp value(std::uint64_t i) const { return sectors_[i].history.back().value; }

  /// Returns the position of the new value.
  std::uint32_t apply(std::uint64_t sector, Stamp value, Action action);

  /// Power is lost: each sector falls back to any value since the last durable one. Returns the
  /// number of a sector that lost what a client was promised, or sectors().
  std::uint64_t crash(Rng& rng);

 private:
  unsigned number_;
  unsigned slot_;
  std::string name_;
  DiskKnobs knobs_;
  std::vector<Sector> sectors_;
};

/// By number; never gets smaller.
using Disks = std::deque<Disk>;

}  // namespace sim
