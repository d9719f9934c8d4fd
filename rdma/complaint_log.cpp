// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/complaint_log.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "rdma/log_about.hpp"

namespace rtrs {
namespace {

/// "3 lines before it were"
std::string lines(std::uint64_t count, const std::string& which) {
  const bool one = count == 1;
  return std::to_string(count) + (one ? " line" : " lines") + which + (one ? " was" : " were");
}

}  // namespace

void ComplaintLog::say(LogLevel level, const std::string& line, Instant now) {
  if (!log_) return;
  if (level == LogLevel::debug) return log_(level, line);
  std::optional<std::uint64_t> left_out;
  {
    const std::lock_guard lock{mutex_};
    left_out = limit_of(level).take(now.time_since_epoch());
  }
  if (!left_out) return log_(LogLevel::debug, line);
  const std::string more =
      *left_out == 0 ? "" : " (" + lines(*left_out, " before it") + " not logged)";
  log_(level, line + more);
}

bool ComplaintLog::is_rested(Instant now) {
  const std::lock_guard lock{mutex_};
  return std::ranges::all_of(
      limits_, [&](const LineLimit& limit) { return limit.is_rested(now.time_since_epoch()); });
}

void ComplaintLog::settle(const std::string& who) {
  if (!log_) return;
  for (const LogLevel level : {LogLevel::info, LogLevel::warning, LogLevel::error}) {
    std::uint64_t left_out = 0;
    {
      const std::lock_guard lock{mutex_};
      left_out = limit_of(level).take_left_out();
    }
    const LogAbout none{{}};  // others may be about to log
    if (left_out != 0) log_(level, who + ": " + lines(left_out, "") + " not logged");
  }
}

}  // namespace rtrs
