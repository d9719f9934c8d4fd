// SPDX-License-Identifier: BSD-3-Clause
// Logs a server's refusals of clients that come back again and again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "rdma/core/time.hpp"
#include "rdma/log.hpp"

namespace rtrs {

/// Says why a host is turned away when it is news, and then once a minute how often. At log level
/// debug it says it each time.
///
/// Threads: one at a time; the time is an argument.
class RefusalLog {
 public:
  explicit RefusalLog(Log log) : log_{std::move(log)} {}

  /// `peer` is an address with its port, which does not count.
  void say(LogLevel level, const std::string& peer, const std::string& why, Instant now);

 private:
  struct Entry {
    Instant said{};
    std::uint64_t unsaid = 0;  ///< since then
  };

  Log log_;
  std::map<std::pair<std::string, std::string>, Entry> entries_;  ///< by host and reason
};

}  // namespace rtrs
