// SPDX-License-Identifier: BSD-3-Clause
// How soon a vote that was lost is tried again.
#pragma once

#include <algorithm>
#include <chrono>

namespace rnbd::mirror {

/// Counts the failures of a vote: it answered an order with an error, or not at all. Each attempt
/// with it takes a view, for which requests wait.
///
/// Invariant: failures_ is the number of failures since it has recorded a view, up to a bound.
/// Threads:   one; pure.
class VotePause {
 public:
  using Clock = std::chrono::steady_clock;

  void failed() { failures_ = std::min(failures_ + 1, kMost); }
  void recorded() { failures_ = 0; }
  /// The time from its loss until it is tried again. While the mirror attaches, it may be needed;
  /// only one that has failed waits a little.
  Clock::duration after_loss(bool live) const {
    constexpr std::chrono::seconds kLeast{10};
    constexpr std::chrono::seconds kMostToAttach{8};
    if (live) return kLeast * (1U << std::max(failures_, 1U) >> 1U);
    if (failures_ == 0) return {};
    return std::min<Clock::duration>(std::chrono::seconds{1U << failures_ >> 1U}, kMostToAttach);
  }

 private:
  static constexpr unsigned kMost = 6;  // more than five minutes
  unsigned failures_ = 0;
};

}  // namespace rnbd::mirror
