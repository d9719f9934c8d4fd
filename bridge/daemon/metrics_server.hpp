// SPDX-License-Identifier: BSD-3-Clause
// Serves the metrics of a program to monitoring: GET /metrics over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/metrics_address.hpp"

namespace rnbd {

/// Serves the page from a thread of its own, so that no I/O waits for it. Drops a client that sends
/// garbage, sends no request for 5 s, or does not accept the answer within 10 s. There are at most
/// 16 clients at a time; a new one replaces the oldest.
///
/// Threads: the page is made on the thread of this server, one at a time.
class MetricsServer {
 public:
  using Page = std::function<std::string()>;

  /// Errors: a sentence that names the address and the cure.
  static tl::expected<std::unique_ptr<MetricsServer>, std::string> open(
      const MetricsAddress& address, Page page);
  /// Waits for a page in progress.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// "127.0.0.1:9234", with the real port.
  const std::string& address() const;

 private:
  class Server;
  explicit MetricsServer(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace rnbd
