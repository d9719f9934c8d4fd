// SPDX-License-Identifier: BSD-3-Clause
// How soon a member whose disk has failed is tried again.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

namespace rnbd::mirror {

/// Counts the failures of a member's disk. One failure may be an accident, but a disk that fails
/// again and again would be copied to for ever.
///
/// Invariant: count_ is the number of failures since the last hour without one.
/// Threads:   one; pure.
class DiskFailures {
 public:
  using Clock = std::chrono::steady_clock;

  /// The disk has failed. Returns the time until the member is tried again.
  Clock::duration add(Clock::time_point now) {
    constexpr std::array<std::chrono::minutes, 4> kWaits{{{}, kMinute, 5 * kMinute, 30 * kMinute}};
    if (newest_ && now - *newest_ >= 60 * kMinute) count_ = 0;
    newest_ = now;
    return kWaits[std::min(count_++, kWaits.size() - 1)];
  }

 private:
  static constexpr std::chrono::minutes kMinute{1};
  std::size_t count_ = 0;
  std::optional<Clock::time_point> newest_;
};

}  // namespace rnbd::mirror
