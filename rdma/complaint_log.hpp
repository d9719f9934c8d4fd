// SPDX-License-Identifier: BSD-3-Clause
// A program's complaints about its peers, bounded although they may give reasons without end.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "rdma/line_limit.hpp"
#include "rdma/log.hpp"

namespace rtrs {

/// Passes the first lines on, and then one per period with how many were left out. Each severity is
/// counted for itself, so that many harmless lines hide no warning. To those who want to know
/// everything (debug) it says all.
///
/// Threads: any; the time is an argument.
class ComplaintLog {
 public:
  using Instant = std::chrono::steady_clock::time_point;
  using Allowance = LineLimit::Allowance;  ///< of one severity

  explicit ComplaintLog(Log log, Allowance allowance = {})
      : log_{std::move(log)},
        limits_{LineLimit{allowance}, LineLimit{allowance}, LineLimit{allowance}} {}

  void say(LogLevel level, const std::string& line, Instant now);
  /// It has been quiet for so long that there is room for as much as in the beginning.
  bool is_rested(Instant now);
  /// Says how many lines were left out since the last one, if any were: before it is forgotten.
  void settle(const std::string& who);

 private:
  LineLimit& limit_of(LogLevel level) {
    return limits_[static_cast<std::size_t>(level) - static_cast<std::size_t>(LogLevel::info)];
  }

  const Log log_;
  std::mutex mutex_;
  std::array<LineLimit, 3> limits_;  ///< info, warning, error; guarded by mutex_
};

}  // namespace rtrs
