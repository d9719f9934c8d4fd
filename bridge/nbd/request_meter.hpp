// SPDX-License-Identifier: BSD-3-Clause
// The requests of a connection as its operator sees them: counters, probes and lines in the log.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/request.hpp"
#include "rdma/line_limit.hpp"
#include "rdma/log.hpp"

namespace rnbd::nbd {

/// Meters each request from its begin to its end, and reports failures.
///
/// Threads: that of its connection.
class RequestMeter {
 public:
  /// `device` outlives all requests.
  RequestMeter(const std::string& device, std::shared_ptr<Meter> meter, const rtrs::Log& log)
      : device_{device}, meter_{std::move(meter)}, log_{log} {}

  void begin(Request& request);
  /// Does nothing for a request that has not begun, or has ended.
  void end(Request& request, int error);
  /// Logs the failure of a request. A device that fails, fails often: the limit is a line a second.
  void report(const Request& request, int error, std::chrono::steady_clock::time_point now);

 private:
  const std::string& device_;           ///< its name
  const std::shared_ptr<Meter> meter_;  ///< of its device and its worker
  const rtrs::Log& log_;
  rtrs::LineLimit limit_{{.burst = 1, .period = std::chrono::seconds{1}}};
};

}  // namespace rnbd::nbd
