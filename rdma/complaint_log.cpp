// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/complaint_log.hpp"

#include <algorithm>
#include <utility>

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
  std::uint64_t unsaid = 0;
  {
    const std::lock_guard lock{mutex_};
    Account& account = account_of(level);
    look_after_room(account, now);
    if (account.room == 0) {
      ++account.unsaid;
      level = LogLevel::debug;
    } else {
      --account.room;
      unsaid = std::exchange(account.unsaid, 0);
    }
  }
  const std::string more = unsaid == 0 ? "" : " (" + lines(unsaid, " before it") + " not logged)";
  log_(level, line + more);
}

bool ComplaintLog::is_rested(Instant now) {
  const std::lock_guard lock{mutex_};
  return std::all_of(accounts_.begin(), accounts_.end(), [&](Account& account) {
    look_after_room(account, now);
    return account.room == allowance_.burst;
  });
}

void ComplaintLog::settle(const std::string& who) {
  if (!log_) return;
  for (const LogLevel level : {LogLevel::info, LogLevel::warning, LogLevel::error}) {
    std::uint64_t unsaid = 0;
    {
      const std::lock_guard lock{mutex_};
      unsaid = std::exchange(account_of(level).unsaid, 0);
    }
    const LogAbout none{{}};  // others may be about to log
    if (unsaid != 0) log_(level, who + ": " + lines(unsaid, "") + " not logged");
  }
}

void ComplaintLog::look_after_room(Account& account, Instant now) const {
  const auto periods = std::max<std::int64_t>((now - account.counted) / allowance_.period, 0);
  account.counted += periods * allowance_.period;
  account.room =
      static_cast<unsigned>(std::min<std::int64_t>(account.room + periods, allowance_.burst));
}

}  // namespace rtrs
