// SPDX-License-Identifier: BSD-3-Clause
// The recovery handler's jobs for which no caller waits.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>

#include "rdma/client.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/client/lanes.hpp"

namespace rtrs {

/// Runs them on the control lane, one at a time, see RecoveryHandler::background_job(). They wait
/// for events that nobody reports to this side, such as a permit, or the end of cancelled calls. So
/// the handler is asked for one again and again.
///
/// Threads: the client's background thread.
class BackgroundJobs {
 public:
  /// All must outlive this object. A null handler has no jobs.
  BackgroundJobs(boost::asio::io_context& io, RecoveryHandler* handler, ClientLanes& lanes)
      : io_{io}, handler_{handler}, lanes_{lanes}, next_{io} {}

  /// The session is up, with these features: asks every kBackgroundPause from now on.
  void start(std::uint32_t features);
  /// Asks for the next one, unless one runs.
  void run();
  void stop() { next_.cancel(); }

 private:
  void ask_later();
  void ended();
  void cancel_slow();

  boost::asio::io_context& io_;
  RecoveryHandler* handler_;
  ClientLanes& lanes_;
  Alarm next_;
  std::uint32_t features_ = 0;
  std::unique_ptr<Operation> job_;  ///< that runs
  Instant since_{};
};

}  // namespace rtrs
