// SPDX-License-Identifier: BSD-3-Clause
// A server's log of its clients, bounded although they may come and go, open and close without end.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "rdma/complaint_log.hpp"

namespace rtrs {

/// A ComplaintLog for each host, so that the log is not filled by one, and nobody's lines are left
/// out for what others do. One for all parts of a program, or the allowance is none.
///
/// Threads: any; the time is an argument.
class ClientLog {
 public:
  /// Of one host and severity: enough for a day's work of an honest host; the rest is some
  /// megabytes a day at most.
  static constexpr ComplaintLog::Allowance kAllowance{200, std::chrono::seconds{1}};
  /// Hosts that are kept apart. Those beyond share one allowance.
  static constexpr std::size_t kMaxHosts = 256;
  /// Of one network of IPv6, see network_of_host(). The next ones there share one allowance.
  static constexpr std::size_t kMaxHostsOfNetwork = 16;

  explicit ClientLog(Log log) : log_{std::move(log)} {}
  /// Says of every host how many lines were left out.
  ~ClientLog();
  ClientLog(const ClientLog&) = delete;
  ClientLog& operator=(const ClientLog&) = delete;

  /// `peer` is an address with its port, which does not count.
  void say(LogLevel level, const std::string& peer, const std::string& line,
           ComplaintLog::Instant now);

 private:
  struct Host {
    std::shared_ptr<ComplaintLog> log = {};
    std::string network = {};  ///< "" = none
  };

  std::shared_ptr<ComplaintLog> of(const std::string& peer, ComplaintLog::Instant now);
  bool is_crowded(const std::string& network) const;
  void forget_rested(ComplaintLog::Instant now);

  const Log log_;
  std::mutex mutex_;
  std::map<std::string, Host> hosts_;  ///< guarded by mutex_
};

}  // namespace rtrs
