// SPDX-License-Identifier: BSD-3-Clause
// Where monitoring reads the metrics of a program: GET /metrics over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/metrics_address.hpp"

namespace rnbd {

/// Serves the page from a thread of its own, which no I/O waits for. Drops a client that
/// sends garbage, or no request for 5 s, or does not take the answer within 10 s. There are at most
/// 16 at a time, and the oldest makes room.
///
/// Threads: the page is made on the thread of the door, one at a time.
class MetricsDoor {
 public:
  using Page = std::function<std::string()>;

  /// Errors: a sentence that names the address and the cure.
  static tl::expected<std::unique_ptr<MetricsDoor>, std::string> open(const MetricsAddress& address,
                                                                      Page page);
  /// Waits for the page that is being made.
  ~MetricsDoor();
  MetricsDoor(const MetricsDoor&) = delete;
  MetricsDoor& operator=(const MetricsDoor&) = delete;

  /// "127.0.0.1:9234", with the real port.
  const std::string& address() const;

 private:
  class Server;
  explicit MetricsDoor(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace rnbd
