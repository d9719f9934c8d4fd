// SPDX-License-Identifier: BSD-3-Clause
// Decides whether to look for an answer again and again before sleeping for it.
#pragma once

#include <algorithm>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Spinning pays only where answers come within the time one is willing to spin. So it is given up
/// after some spins in vain, and tried again now and then.
///
/// Threads: belongs to one lane; pure.
class SpinScore {
 public:
  static constexpr unsigned kMost = 8;    ///< four spins in vain use it up
  static constexpr unsigned kRetry = 64;  ///< sleeps without a spin until the next try

  /// 0 = never.
  explicit SpinScore(Duration longest) : longest_{longest} {}

  /// Somebody is about to sleep until something arrives: how long to spin before; 0 = not at all.
  Duration next() {
    if (longest_ == Duration::zero()) return longest_;
    if (score_ == 0 && ++sleeps_ <= kRetry) return Duration::zero();
    sleeps_ = 0;
    return longest_;
  }
  /// The end of that spin.
  void ended(bool something_came) {
    score_ = something_came ? std::min(score_ + 1, kMost) : score_ / 2;
  }

 private:
  Duration longest_;
  unsigned score_ = kMost;
  unsigned sleeps_ = 0;
};

}  // namespace rtrs
