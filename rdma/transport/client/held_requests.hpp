// SPDX-License-Identifier: BSD-3-Clause
// Reports about requests that older ones hold back for long.
#pragma once

#include "rdma/client.hpp"
#include "rdma/core/client/notice.hpp"
#include "rdma/transport/client/lanes.hpp"
#include "rdma/transport/client/notices.hpp"

namespace rtrs {

/// Tells readers of the log that opens or writes wait, and that opens go on.
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
