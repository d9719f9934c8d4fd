// SPDX-License-Identifier: BSD-3-Clause
// The memory that a path's requests use, and what of it is lent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rdma/core/memory_account.hpp"
#include "rdma/core/queue_pair.hpp"

namespace rtrs {

/// Counts, for each chunk, the pages that may be real because a request has used them. These are a
/// number of pages from its start on, and one behind these, where the message of a request is.
///
/// The first two pages and the one of the message belong to the path, for every chunk. So requests
/// with data of a page at most need no loan, nor do messages, and nobody counts them.
///
/// Invariant: the other pages are covered by the rest of the path's floor and its loan.
///
/// Units:   bytes.
/// Threads: the session's reactor.
class PathLoan final : public MemoryAccount::Borrower {
 public:
  /// Memory comes and goes in pages of this size, on nearly all machines.
  static constexpr std::uint32_t kPage = 4096;
  /// Pages of each chunk that belong to the path: at its start, and all.
  static constexpr std::uint32_t kFirstPages = 2, kOwnPages = kFirstPages + 1;
  static_assert(kFirstPages * kPage == QueuePairHandler::kAlwaysRoom);

  /// The owner is told when memory comes, or should go back.
  class Owner {
   public:
    /// Any thread; it may not call the loan, but must let its thread do that.
    virtual void on_memory_news() = 0;

   protected:
    ~Owner() = default;
  };

  /// `floor`: the path's own memory. Null account: the path has all of its memory.
  PathLoan(Owner& owner, MemoryAccount* account, std::uint64_t floor, std::uint16_t chunks);
  ~PathLoan() { end(); }

  /// The user whose memory it is, before anything is used.
  void belong_to(std::string_view user) {
    if (limited()) MemoryAccount::join(*this, user);
  }
  bool limited() const { return account_ != nullptr; }
  /// Bytes that are lacking until these of the chunk can be used; `begin` < `end`.
  std::uint64_t lacks(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) const {
    const Pages& now = pages_[chunk];
    return lendable(with(now, begin, end)) - lendable(now);
  }
  /// These bytes of the chunk have been used before; as nearly always.
  bool covers(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) const {
    const Pages& now = pages_[chunk];
    const auto to = static_cast<std::int32_t>((end - 1) / kPage);
    const bool one = begin / kPage == (end - 1) / kPage;
    return to < now.first || (to == now.last && (to == now.first || one));
  }
  /// These bytes of the chunk may be used from now on. False: that needs more memory than there is.
  bool extend(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end);
  /// Bytes from the start of the chunk on that may be real, without the first pages.
  std::uint64_t used(std::uint32_t chunk) const { return lendable(pages_[chunk]); }
  /// All from the start of the chunk to the last one that may be real.
  std::uint64_t span(std::uint32_t chunk) const {
    return bytes(std::max(pages_[chunk].first, pages_[chunk].last + 1));
  }
  /// The machine has them back.
  void forget(std::uint32_t chunk);
  /// Waits until so much more can be used.
  void await(std::uint64_t bytes);
  void stop_waiting() { account_->stop_waiting(*this); }
  /// Gives back what was lent for bytes that are not used any more, and not awaited.
  void settle(std::uint64_t awaited = 0);
  /// Nothing was short lately, perhaps.
  void relax(Instant now) {
    if (asked() || account_->reserves()) account_->relax(*this, now);
  }
  /// The path counts with what it holds from now on, or is gone.
  void end() {
    if (limited()) account_->leave(*this);
  }

  /// Bytes of all chunks that may be real, without those that each chunk has.
  std::uint64_t used() const { return all_used_; }
  /// The account says that memory is short, and this path has borrowed some.
  bool is_wanted() const { return asked() && lent() != 0; }
  /// The path's own memory for these.
  std::uint64_t floor() const { return floor_; }

 private:
  /// Pages of a chunk that may be real.
  struct Pages {
    std::int32_t first = 0;  ///< so many from the start on
    std::int32_t last = -1;  ///< and this one, if it is not among them; -1: none
  };
  static std::uint64_t bytes(std::int32_t pages) {
    return static_cast<std::uint64_t>(pages) * kPage;
  }
  static std::uint64_t lendable(const Pages& pages) {
    constexpr auto kFirst = static_cast<std::int32_t>(kFirstPages);
    return bytes(std::max(pages.first, kFirst) - kFirst);
  }
  static Pages with(const Pages& now, std::uint64_t begin, std::uint64_t end);
  void wake() override { owner_.on_memory_news(); }

  Owner& owner_;
  MemoryAccount* account_;
  std::uint64_t floor_ = 0;
  std::vector<Pages> pages_;  ///< by chunk
  std::uint64_t all_used_ = 0;
};

}  // namespace rtrs
