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
  Routine open(Opening& opening);
  Task<Opening::Result> find(Opening& opening);
  Task<Opening::Result> lease_export(Opening& opening);
  Task<Opening::Result> lease_file(Opening& opening);
  Task<Opening::Result> search_in_vain(Opening& opening, const Failure& refusal);
  void answer(Opening& opening, Opening::Result result);
  void answer_now(const Opening& opening, Opening::Result result);
  bool has_its_share() const;
  bool is_out(const std::string& name, wire::AccessMode mode);
  int withdrawn_meanwhile(const std::string& name, wire::AccessMode mode);
  Device& add(const Opening& opening, Lease lease, BackendQueue& queue);
  void report(const Device& device);
  void answer_with(rtrs::ServerRequest& request, std::uint32_t number, Device& device);
  void refuse(rtrs::ServerRequest& request, std::uint32_t number, int error);

  const SessionParts& session_;
  OpeningSteps& steps_;
};

}  // namespace rnbd
