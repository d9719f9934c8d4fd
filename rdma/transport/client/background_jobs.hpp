// SPDX-License-Identifier: BSD-3-Clause
// Work of the background thread beside paths: jobs for which no caller waits, and reports about
// requests that wait for long.
#pragma once

#include <cstdint>
#include <memory>

#include "rdma/client.hpp"
#include "rdma/core/client/notice.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/client/lanes.hpp"
#include "rdma/transport/client/notices.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs {

/// Runs the jobs of the recovery handler on the control lane, one at a time, see
/// RecoveryHandler::background_job(). They wait for events that nobody reports to this side, such
/// as a permit, or the end of cancelled calls. So the handler is asked for one again and again.
///
/// Threads: the client's background thread.
class BackgroundJobs {
 public:
  /// All must outlive this object. A null handler has no jobs.
  BackgroundJobs(Reactor& reactor, RecoveryHandler* handler, ClientLanes& lanes)
      : reactor_{reactor}, handler_{handler}, lanes_{lanes}, next_{reactor.alarms()} {}

  /// The session is up, with these features: asks every kBackgroundPause from now on.
  void start(std::uint32_t features);
  /// Asks for the next one, unless one runs.
  void run();
  void stop() { next_.cancel(); }

 private:
  void ask_later();
  void ended();
  void cancel_slow();

  Reactor& reactor_;
  RecoveryHandler* handler_;
  ClientLanes& lanes_;
  Alarm next_;
  std::uint32_t features_ = 0;
  std::unique_ptr<Operation> job_;  ///< that runs
  Instant since_{};
};

/// Tells readers of the log that older requests hold back opens or writes for long, and that opens
/// go on.
///
/// Threads: the client's background thread.
class HeldRequests {
 public:
  HeldRequests(const ClientOptions& options, ClientNotices& notices, ClientLanes& lanes)
      : options_{options}, notices_{notices}, lanes_{lanes} {}

  /// At each heartbeat.
  void look(Instant now) {
    look_at_opens(now);
    look_at_writes(now);
  }

 private:
  void look_at_opens(Instant now);
  void look_at_writes(Instant now);

  const ClientOptions& options_;
  ClientNotices& notices_;
  ClientLanes& lanes_;
  LastingCondition opens_wait_;
  LastingCondition writes_wait_;
};

}  // namespace rtrs
