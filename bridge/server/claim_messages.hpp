// SPDX-License-Identifier: BSD-3-Clause
// CLAIM: a device that was opened without the right to write gets it, before its first write.
#pragma once

#include "bridge/protocol/messages.hpp"
#include "bridge/server/opening.hpp"
#include "bridge/server/opening_steps.hpp"
#include "bridge/server/session_parts.hpp"

namespace rnbd {

struct Device;

/// Describes devices to their users, and gives the right to write to those whose knowledge of the
/// content is up to date.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class ClaimMessages {
 public:
  ClaimMessages(const SessionParts& session, OpeningSteps& steps)
      : session_{session}, steps_{steps} {}

  void on_claim(rtrs::ServerRequest& request);
  /// The storage of the device that a CLAIM names; null: there is no such device.
  const WriterCount* storage_of(const rtrs::ServerRequest& request) const;
  void on_device_info(rtrs::ServerRequest& request);

 private:
  /// None: the device may be written already.
  using Granted = tl::expected<std::optional<Lease>, Failure>;

  Routine claim(Opening& opening, wire::Claim message);
  Task<Granted> grant(Opening& opening, const wire::Claim& message);
  void answer(const Opening& opening, const wire::Claim& message, Granted granted);
  void take_over(Device& device, const wire::Claim& message, Lease lease);
  void describe(rtrs::ServerRequest& request, Device& device, bool in_use);

  const SessionParts& session_;
  OpeningSteps& steps_;
};

}  // namespace rnbd
