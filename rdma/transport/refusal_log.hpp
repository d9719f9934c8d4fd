// SPDX-License-Identifier: BSD-3-Clause
// Logs a server's refusals of clients that come back again and again.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "rdma/core/time.hpp"
#include "rdma/line_limit.hpp"
#include "rdma/log.hpp"

namespace rtrs {

/// A client that has proven no identity, or one that may not come in.
struct AuthRefusal {
  std::string peer = {};      ///< an address with its port
  std::string listener = {};  ///< as Acceptor::address()
  std::string user = {};      ///< as the client says, in whatever bytes; "" = it has not said so
  std::string how = {};       ///< "tls-psk", "tls-x509", "tls", "proof", "none"
  std::string why = {};
};

/// Says why a host is turned away when it is news, and then once a minute how often. At log level
/// debug it says it each time. Of one network of IPv6 a few hosts are kept apart, see
/// network_of_host(); the others there are one.
///
/// Threads: one at a time; the time is an argument.
class RefusalLog {
 public:
  explicit RefusalLog(Log log) : log_{std::move(log)} {}

  /// `peer` is an address with its port, which does not count.
  void say(LogLevel level, const std::string& peer, const std::string& why, Instant now);
  /// `auth refused peer=... listener=... user=... how=... why="..."`, see audit_line(). Another
  /// user of the same host is news, but for hosts that try many.
  void audit(const AuthRefusal& refusal, Instant now);

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  ///< host, user, reason
  void say_once(LogLevel level, Key key, const std::string& line, Instant now);
  std::string name_of(const std::string& peer) const;
  bool tries_many(const std::string& host) const;

  Log log_;
  std::map<Key, LineLimit> limits_;
};

}  // namespace rtrs
