// SPDX-License-Identifier: BSD-3-Clause
// The rule that limits how often lines of one kind are logged.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace rtrs {

/// Lets the first lines of a kind through, and then one per period. It counts the others.
///
/// Invariant: in any period that follows the burst, one line is let through at most.
/// Units:     `now` is the time since a moment that never changes.
/// Threads:   one at a time.
class LineLimit {
 public:
  using Time = std::chrono::nanoseconds;
  struct Allowance {
    unsigned burst = 20;  ///< lines at first, and after so many periods without one
    std::chrono::seconds period{10};
  };

  explicit LineLimit(Allowance allowance) : allowance_{allowance}, room_{allowance.burst} {}

  /// Returns the number of lines that were left out since the last one. None: leave this one out.
  std::optional<std::uint64_t> take(Time now) {
    refill(now);
    if (room_ == 0) {
      ++left_out_;
      return std::nullopt;
    }
    --room_;
    return std::exchange(left_out_, 0);
  }
  /// True: a whole burst would be let through.
  bool is_rested(Time now) const { return room_ + periods_until(now) >= allowance_.burst; }
  /// Returns the number of lines that were left out since the last one, once.
  std::uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  std::int64_t periods_until(Time now) const {
    return std::max(now - period_began_, Time{}) / allowance_.period;
  }
  /// A limit that is rested has no period under way: the next one begins with the next line.
  void refill(Time now) {
    const std::int64_t periods = periods_until(now);
    period_began_ = is_rested(now) ? now : period_began_ + periods * allowance_.period;
    room_ = static_cast<unsigned>(std::min<std::int64_t>(room_ + periods, allowance_.burst));
  }

  Allowance allowance_;
  unsigned room_;  ///< lines
  Time period_began_{};
  std::uint64_t left_out_ = 0;  ///< lines
};

}  // namespace rtrs
