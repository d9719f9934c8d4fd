// SPDX-License-Identifier: BSD-3-Clause
// Time as the core sees it: an argument, never a clock.
#pragma once

#include <chrono>

namespace rtrs {

using Duration = std::chrono::nanoseconds;

/// Tag of the monotonic clock that drivers read and the simulator invents.
struct MonotonicClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicClock>;
  static constexpr bool is_steady = true;
};

using Instant = MonotonicClock::time_point;

}  // namespace rtrs
