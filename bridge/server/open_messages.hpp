// SPDX-License-Identifier: BSD-3-Clause
// OPEN: a name becomes a lease, its session's reservation, and a device with an id.
#pragma once

#include <cstdint>
#include <string>

#include "bridge/server/opening.hpp"
#include "bridge/server/opening_steps.hpp"
#include "bridge/server/session_parts.hpp"

namespace rnbd {

struct Device;

/// Opens exports and files of the search path, for users with a right to them.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class OpenMessages {
 public:
  OpenMessages(const SessionParts& session, OpeningSteps& steps)
      : session_{session}, steps_{steps} {}

  void on_request(rtrs::ServerRequest& request);

 private:
  void open_export(const OpeningPtr& opening);
  void renew_export(const OpeningPtr& opening);
  void ask_size(const OpeningPtr& opening);
  void lease_export(const OpeningPtr& opening);
  void open_file(const OpeningPtr& opening);
  void found(const OpeningPtr& opening);
  void refuse_stranger(const OpeningPtr& opening);
  void refuse_unseen(const OpeningPtr& opening, const Failure& failure);
  void answer(const OpeningPtr& opening, Opening::Result result);
  bool has_its_share() const;
  bool is_out(const std::string& name, wire::AccessMode mode);
  int withdrawn_meanwhile(const std::string& name, wire::AccessMode mode);
  Device& add(const OpeningPtr& opening, Lease lease, BackendQueue& queue);
  void report(const Device& device);
  void answer_with(rtrs::ServerRequest& request, std::uint32_t number, Device& device);
  void refuse(rtrs::ServerRequest& request, std::uint32_t number, int error);

  const SessionParts& session_;
  OpeningSteps& steps_;
};

}  // namespace rnbd
