#include "rdma/complaint_log.hpp"

#include <algorithm>
#include <utility>

namespace rtrs {

void ComplaintLog::say(LogLevel level, const std::string& line, Instant now) {
  if (!log_) return;
  if (level == LogLevel::debug) return log_(level, line);
  std::uint64_t unsaid = 0;
  {
    const std::lock_guard lock{mutex_};
    look_after_room(now);
    if (room_ == 0) {
      ++unsaid_;
      level = LogLevel::debug;
    } else {
      --room_;
      unsaid = std::exchange(unsaid_, 0);
    }
  }
  const std::string more =
      unsaid == 0 ? "" : " (" + std::to_string(unsaid) + " lines before it were not logged)";
  log_(level, line + more);
}

bool ComplaintLog::is_rested(Instant now) {
  const std::lock_guard lock{mutex_};
  look_after_room(now);
  return room_ == allowance_.burst;
}

void ComplaintLog::look_after_room(Instant now) {
  const auto periods = std::max<std::int64_t>((now - counted_) / allowance_.period, 0);
  counted_ += periods * allowance_.period;
  room_ = static_cast<unsigned>(std::min<std::int64_t>(room_ + periods, allowance_.burst));
}

}  // namespace rtrs
