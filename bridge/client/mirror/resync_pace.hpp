// SPDX-License-Identifier: BSD-3-Clause
// How fast a member is brought up to date.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "bridge/client/mirror/membership.hpp"

namespace rnbd::mirror {

/// Measures the copies of a resync over the last 10 seconds.
///
/// Invariant: samples are at least a second apart, and only the first one may be older than 10 s.
/// Threads:   one; pure.
class ResyncPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// Call it at least each second.
  void add(Clock::time_point now, const Membership::Progress& progress) {
    if (progress.standing != Membership::Standing::resync) return samples_.clear();
    if (!samples_.empty() && now - samples_.back().at < kApart) return;
    samples_.push_back({now, progress.left});
    while (samples_.size() > 2 && now - samples_[1].at >= kSpan) samples_.pop_front();
  }

  /// Regions a second. 0 until a second has passed, and while changes make more to copy than was
  /// copied.
  double regions_per_second() const {
    if (samples_.size() < 2 || samples_.back().left >= samples_.front().left) return 0;
    const std::chrono::duration<double> took = samples_.back().at - samples_.front().at;
    return (samples_.front().left - samples_.back().left) / took.count();
  }

  /// True if there was no less to copy for 10 s.
  bool stalls() const {
    return samples_.size() > 1 && samples_.back().at - samples_.front().at >= kSpan &&
           samples_.back().left >= samples_.front().left;
  }

 private:
  static constexpr std::chrono::seconds kApart{1};
  static constexpr std::chrono::seconds kSpan{10};
  struct Sample {
    Clock::time_point at;
    std::uint32_t left = 0;  ///< regions
  };
  std::deque<Sample> samples_;
};

}  // namespace rnbd::mirror
