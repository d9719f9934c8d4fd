// SPDX-License-Identifier: BSD-3-Clause
// A limit for all connections together. Each one may always take a small part.
#pragma once

#include <atomic>
#include <cstddef>

namespace rnbd::nbd {

/// A limited amount that connections share, and the used part of it.
///
/// Threads: any.
class Budget {
 public:
  explicit Budget(std::size_t limit) : limit_{limit} {}

  bool spent() const { return used_.load(std::memory_order_relaxed) >= limit_; }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class Share;
  const std::size_t limit_;
  std::atomic<std::size_t> used_{0};
};

/// One connection's share of a budget. The first units are its own: they are always there for it
/// and do not count. Beyond them it waits only for the end of its own requests.
///
/// Threads: one at a time; each may exceed the budget by the amount that it takes at once.
class Share {
 public:
  Share(Budget& budget, std::size_t own) : budget_{budget}, own_{own} {}
  ~Share() { give_back(has_); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  std::size_t has() const { return has_; }
  /// True if take() is allowed now, for any amount.
  bool may_grow() const { return has_ < own_ || !budget_.spent(); }
  void take(std::size_t amount) {
    const std::size_t before = beyond();
    has_ += amount;
    if (const std::size_t more = beyond() - before; more != 0) {
      budget_.used_.fetch_add(more, std::memory_order_relaxed);
    }
  }
  void give_back(std::size_t amount) {
    const std::size_t before = beyond();
    has_ -= amount;
    if (const std::size_t less = before - beyond(); less != 0) {
      budget_.used_.fetch_sub(less, std::memory_order_relaxed);
    }
  }

 private:
  std::size_t beyond() const { return has_ > own_ ? has_ - own_ : 0; }

  Budget& budget_;
  const std::size_t own_;
  std::size_t has_ = 0;
};

}  // namespace rnbd::nbd
