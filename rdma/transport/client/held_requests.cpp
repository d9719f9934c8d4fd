// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/held_requests.hpp"

#include <chrono>

namespace rtrs {

/// Storage that hangs at a server without the extension delays whoever opens another device.
void HeldRequests::look_at_opens(Instant now) {
  if (!lanes_.opens_unresolved() && opens_wait_.rearm()) {
    notices_.report({.kind = Notice::Kind::opens_go_on}, now);
  }
  const Duration patience = options_.heartbeat_interval * options_.heartbeat_misses;
  if (opens_wait_.is_due(lanes_.opens_wait(), now, patience)) {
    notices_.report({.kind = Notice::Kind::opens_wait}, now);
  }
}

/// Likewise writes to a device of which an older write has not ended.
void HeldRequests::look_at_writes(Instant now) {
  constexpr Duration kPatience = std::chrono::seconds{5};
  const bool held = lanes_.writes_wait();
  if (!held) writes_wait_.rearm();
  if (writes_wait_.is_due(held, now, kPatience)) {
    notices_.report({.kind = Notice::Kind::writes_wait}, now);
  }
}

}  // namespace rtrs
