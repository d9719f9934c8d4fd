// SPDX-License-Identifier: BSD-3-Clause
// The account of the memory that a server lends to its paths.
#pragma once

#include <atomic>
#include <cstdint>

namespace rtrs {

/// Memory of requests, of which only the used part is real, as over TCP. Each path has a floor of
/// its own. Memory beyond that is lent to it from the rest of the limit.
///
/// Invariant: floors and loans are never more than the limit together. Only when a path is lost
/// whose requests execute on, it may count twice for a moment.
///
/// An eighth of the limit is never lent, so that paths can come while all others are busy.
///
/// Units:   bytes.
/// Threads: claim_floor() and set_floors() one at a time; all else any.
class MemoryAccount {
 public:
  explicit MemoryAccount(std::uint64_t limit) : limit_{limit} {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  /// False: too much is lent, and should come back.
  bool claim_floor(std::uint64_t bytes);
  /// The floors of all paths together, as admission counts them.
  void set_floors(std::uint64_t bytes) {
    used_ += bytes - floors_.exchange(bytes);
    look_whether_short();
  }
  /// False: too little is left.
  bool lend(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) {
    used_ -= bytes;
    lent_ -= bytes;
    look_whether_short();
  }

  std::uint64_t limit() const { return limit_; }
  std::uint64_t floors() const { return floors_; }
  std::uint64_t lent() const { return lent_; }

  /// Requests of a path begin to wait for memory, or do so no more.
  void begin_wait() { ++waiting_; }
  void end_wait() { --waiting_; }
  /// Requests wait, or a path could not come: who borrows gives back what no request uses.
  bool is_short() const {
    return waiting_.load(std::memory_order_relaxed) != 0 ||
           refused_.load(std::memory_order_relaxed);
  }

 private:
  bool use(std::uint64_t bytes, std::uint64_t most);
  std::uint64_t lendable() const { return limit_ - limit_ / 8; }
  void look_whether_short() {
    if (refused_ && used_ <= lendable()) refused_ = false;
  }

  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};  ///< floors and loans
  std::atomic<std::uint64_t> floors_{0};
  std::atomic<std::uint64_t> lent_{0};
  std::atomic<unsigned> waiting_{0};  ///< paths
  std::atomic<bool> refused_{false};  ///< a floor, since so little was used that some could be lent
};

inline bool MemoryAccount::use(std::uint64_t bytes, std::uint64_t most) {
  std::uint64_t used = used_;
  do {
    if (used + bytes > most) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

inline bool MemoryAccount::claim_floor(std::uint64_t bytes) {
  if (!use(bytes, limit_)) {
    refused_ = true;
    return false;
  }
  floors_ += bytes;
  return true;
}

inline bool MemoryAccount::lend(std::uint64_t bytes) {
  if (!use(bytes, lendable())) return false;
  lent_ += bytes;
  return true;
}

}  // namespace rtrs
