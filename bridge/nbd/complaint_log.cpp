#include "bridge/nbd/complaint_log.hpp"

#include <algorithm>
#include <utility>

namespace rnbd::nbd {

void ComplaintLog::say(rtrs::LogLevel level, const std::string& line, Instant now) {
  if (!log_) return;
  std::uint64_t unsaid = 0;
  {
    const std::lock_guard lock{mutex_};
    const auto periods = std::max<std::int64_t>((now - counted_) / kPeriod, 0);
    counted_ += periods * kPeriod;
    room_ = static_cast<unsigned>(std::min<std::int64_t>(room_ + periods, kBurst));
    if (room_ == 0) {
      ++unsaid_;
      level = rtrs::LogLevel::debug;
    } else {
      --room_;
      unsaid = std::exchange(unsaid_, 0);
    }
  }
  const std::string more =
      unsaid == 0 ? "" : " (" + std::to_string(unsaid) + " complaints before it were not logged)";
  log_(level, line + more);
}

}  // namespace rnbd::nbd
