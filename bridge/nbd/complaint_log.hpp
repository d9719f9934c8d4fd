// What a front says of its clients, who may give it reasons without end.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "rdma/log.hpp"

namespace rnbd::nbd {

/// Passes the first lines on, and then one per period with how many were left out. To those who
/// want to know everything (debug) it says these, too.
///
/// Threads: any; the time is an argument.
class ComplaintLog {
 public:
  using Instant = std::chrono::steady_clock::time_point;
  static constexpr unsigned kBurst = 20;  ///< lines, after it has been quiet for so many periods
  static constexpr std::chrono::seconds kPeriod{10};

  explicit ComplaintLog(rtrs::Log log) : log_{std::move(log)} {}

  void say(rtrs::LogLevel level, const std::string& line, Instant now);

 private:
  const rtrs::Log log_;
  std::mutex mutex_;
  unsigned room_ = kBurst;    ///< guarded by mutex_; lines
  Instant counted_{};         ///< guarded by mutex_; when room_ was last looked after
  std::uint64_t unsaid_ = 0;  ///< guarded by mutex_
};

}  // namespace rnbd::nbd
