// SPDX-License-Identifier: BSD-3-Clause
// A program's complaints about its peers, bounded although they may give reasons without end.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

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
  /// Of one severity.
  struct Allowance {
    unsigned burst = 20;  ///< lines, after it has been quiet for so many periods
    std::chrono::seconds period{10};
  };

  explicit ComplaintLog(Log log, Allowance allowance)
      : log_{std::move(log)}, allowance_{allowance} {
    accounts_.fill({.room = allowance.burst});
  }
  explicit ComplaintLog(Log log) : ComplaintLog{std::move(log), Allowance{}} {}

  void say(LogLevel level, const std::string& line, Instant now);
  /// It has been quiet for so long that there is room for as much as in the beginning.
  bool is_rested(Instant now);
  /// Says how many lines were left out since the last one, if any were: before it is forgotten.
  void settle(const std::string& who);

 private:
  struct Account {
    unsigned room = 0;         ///< lines
    Instant counted{};         ///< when room was last looked after
    std::uint64_t unsaid = 0;  ///< lines
  };

  Account& account_of(LogLevel level) {
    return accounts_[static_cast<std::size_t>(level) - static_cast<std::size_t>(LogLevel::info)];
  }
  void look_after_room(Account& account, Instant now) const;

  const Log log_;
  const Allowance allowance_;
  std::mutex mutex_;
  std::array<Account, 3> accounts_;  ///< info, warning, error; guarded by mutex_
};

}  // namespace rtrs
