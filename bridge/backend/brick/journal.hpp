// SPDX-License-Identifier: BSD-3-Clause
// The file with a brick's allocation: two superblocks, each with a map of all places and a log of
// later changes. The newer superblock counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bridge/backend/brick/mark.hpp"
#include "bridge/backend/brick/part_file.hpp"
#include "bridge/backend/brick/types.hpp"

namespace rnbd::brick {

/// Threads: one at a time; blocks.
class Journal {
 public:
  /// Both must outlive it.
  Journal(PartFile& file, PartFile& tier) : file_{file}, tier_{tier} {}

  /// Creates a journal without blocks in an empty file. Errors: those of the files.
  int create(std::uint32_t places, const std::array<std::uint8_t, 16>& uuid);
  /// Reads the journal up to the first incomplete record. Changes nothing, and nothing can be
  /// changed before begin().
  ///
  /// Errors: EBADMSG it is no journal, or is damaged; ENOSPC it has more places than the tier,
  /// which are `places`; those of the files.
  int open(std::uint32_t places);
  /// Tells whether the tier is the one that it was left with. Behind open().
  Match match() const { return brick::match(uuid_, version_, marks_, mark_); }
  /// Begins a new log, and marks the tier where it has room. Errors: those of the files.
  int begin();
  /// Durable when it returns 0. After an error nothing can be appended any more.
  int append(const std::vector<Record>& records);

  /// Closes the journal after everything was made durable. The next open() returns `epoch`.
  /// Errors: as append().
  int end(std::uint64_t epoch);
  /// The epoch of the last end(); 0 if the server did not end in order, or had lost data.
  std::uint64_t last_epoch() const { return last_epoch_; }

  std::vector<Kept> kept() const;
  const std::array<std::uint8_t, 16>& uuid() const { return uuid_; }
  /// The number that the journal was created with.
  std::uint32_t places() const { return static_cast<std::uint32_t>(homes_.size()); }

 private:
  struct Home {
    Block block = 0;
    bool taken = false;
    bool stored = false;
  };

  std::uint64_t map_bytes() const;
  std::uint64_t map_at(unsigned half) const;
  std::uint64_t log_at(unsigned half) const;
  bool take(const std::array<std::byte, 4096>& bytes, std::uint64_t& newest);
  int read_map(std::uint32_t crc);
  int replay();
  int apply(const Record& record);
  int checkpoint(std::uint64_t ended_epoch = 0);
  int write_superblock(std::uint64_t ended_epoch);
  int write_log(const std::vector<Record>& records);

  PartFile& file_;
  PartFile& tier_;
  std::array<std::uint8_t, 16> uuid_{};
  std::vector<Home> homes_;
  std::uint64_t version_ = 0;  ///< of the newest superblock; the lowest bit tells its half
  std::uint64_t first_ = 1;    ///< sequence of the log's first record
  std::uint32_t written_ = 0;  ///< records in the log
  std::uint32_t map_crc_ = 0;  ///< of the newest superblock
  std::uint64_t last_epoch_ = 0;
  bool marks_ = false;        ///< superblocks are in the mark, too: the newest, and those to come
  std::optional<Mark> mark_;  ///< as open() has found it
  int broken_ = 0;
};

}  // namespace rnbd::brick
