// What a program says of its peers, who may give it reasons without end.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "rdma/log.hpp"

namespace rtrs {

/// Passes the first lines on, and then one per period with how many were left out. To those who
/// want to know everything (debug) it says these, too.
///
/// Threads: any; the time is an argument.
class ComplaintLog {
 public:
  using Instant = std::chrono::steady_clock::time_point;
  struct Allowance {
    unsigned burst = 20;  ///< lines, after it has been quiet for so many periods
    std::chrono::seconds period{10};
  };

  explicit ComplaintLog(Log log, Allowance allowance)
      : log_{std::move(log)}, allowance_{allowance} {}
  explicit ComplaintLog(Log log) : ComplaintLog{std::move(log), Allowance{}} {}

  void say(LogLevel level, const std::string& line, Instant now);
  /// It has been quiet for so long that there is room for as much as in the beginning.
  bool is_rested(Instant now);

 private:
  void look_after_room(Instant now);

  const Log log_;
  const Allowance allowance_;
  std::mutex mutex_;
  unsigned room_ = allowance_.burst;  ///< guarded by mutex_; lines
  Instant counted_{};                 ///< guarded by mutex_; when room_ was last looked after
  std::uint64_t unsaid_ = 0;          ///< guarded by mutex_
};

}  // namespace rtrs
