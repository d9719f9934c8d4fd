// SPDX-License-Identifier: BSD-3-Clause
// The memory that a path's requests use, and what of it is lent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rdma/core/memory_account.hpp"

namespace rtrs {

/// Counts, for each chunk, the pages that may be real because a request has used them. These are a
/// number of pages from its start on, and one behind these, where the message of a request is. That
/// one always belongs to the path, so a message needs no loan, and only data do.
///
/// Invariant: the pages at the starts of chunks are covered by the path's floor and its loan.
///
/// Units:   bytes.
/// Threads: the session's reactor.
class PathLoan {
 public:
  /// Memory comes and goes in pages of this size, on nearly all machines.
  static constexpr std::uint32_t kPage = 4096;

  /// `floor`: the path's own memory, with a page for a message in each chunk. Null account: the
  /// path has all of its memory.
  PathLoan(MemoryAccount* account, std::uint64_t floor, std::uint16_t chunks);
  ~PathLoan() { end(); }
  PathLoan(const PathLoan&) = delete;
  PathLoan& operator=(const PathLoan&) = delete;

  bool limited() const { return account_ != nullptr; }
  /// Bytes that are lacking until these of the chunk can be used; `begin` < `end`.
  std::uint64_t lacks(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) const {
    const Pages& now = pages_[chunk];
    return bytes(with(now, begin, end).first - now.first);
  }
  /// These bytes of the chunk may be used from now on. False: that needs more memory than there is.
  bool extend(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end);
  /// Bytes from the start of the chunk on that may be real.
  std::uint64_t used(std::uint32_t chunk) const { return bytes(pages_[chunk].first); }
  /// Likewise, and with those of a message behind them.
  std::uint64_t span(std::uint32_t chunk) const {
    return bytes(std::max(pages_[chunk].first, pages_[chunk].last + 1));
  }
  /// The machine has them back.
  void forget(std::uint32_t chunk);
  /// Gives back what was lent for bytes that are not used any more.
  void settle();
  /// The path counts with what it holds from now on, or is gone.
  void end();

  /// Bytes at the starts of all chunks that may be real.
  std::uint64_t used() const { return all_used_; }
  std::uint64_t lent() const { return lent_; }
  /// True: the account says that memory is short, and this path has borrowed some.
  bool is_wanted() const { return lent_ != 0 && account_->is_short(); }
  /// The path's own memory for data.
  std::uint64_t floor() const { return floor_; }
  MemoryAccount* account() const { return account_; }

 private:
  /// Pages of a chunk that may be real.
  struct Pages {
    std::int32_t first = 0;  ///< so many from the start on
    std::int32_t last = -1;  ///< and this one, if it is not among them; -1: none
  };
  static std::uint64_t bytes(std::int32_t pages) {
    return static_cast<std::uint64_t>(pages) * kPage;
  }
  static Pages with(const Pages& now, std::uint64_t begin, std::uint64_t end);

  MemoryAccount* account_;
  std::uint64_t floor_ = 0;   ///< without the pages for messages
  std::vector<Pages> pages_;  ///< by chunk
  std::uint64_t all_used_ = 0;
  std::uint64_t lent_ = 0;
};

}  // namespace rtrs
