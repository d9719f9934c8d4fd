// SPDX-License-Identifier: BSD-3-Clause
// An OPEN or CLAIM while one of its steps may hang.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/open_step.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_parts.hpp"
#include "bridge/server/task.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Shared by the thread that does the work, the timer, and others that its routine waits for. Once
/// it is late, its request has been answered and the session may be gone. Then the work's callback
/// calls let_go(), and touches nothing else.
///
/// Threads: the session's reactor; is_late() any. The results belong to the working thread until it
///          is done.
class Opening : public std::enable_shared_from_this<Opening> {
 public:
  using Result = tl::expected<Lease, Failure>;
  /// The next attempt to get other writers out of the way.
  enum class Remedy : std::uint8_t { end_idle_sessions, wait_for_leaver };

  Opening(rtrs::ServerRequest& open, std::uint32_t open_number, wire::OpenRequest what,
          OpenKind how, const SessionParts& session);

  const std::string& name() const { return wanted.device_name; }
  OpenStep step() const { return step_.load(); }
  bool is_late() const { return step() == OpenStep::late; }
  /// The table must allow it.
  void enter(OpenStep next);
  /// The opening is answered, and its time is not limited any more. One that is late stays so.
  void end();
  /// Goes on with the routine, if it still waits, from the reactor's event loop.
  void go_on() { is_late() ? let_go() : event.wake(); }
  /// Releases results that came too late. The client has not used them, so an earlier reservation
  /// of its own stays, as if it had been cut off.
  void let_go();

  rtrs::ServerRequest& request;
  const std::uint32_t number;  ///< of the OPEN; 0: it has none
  const wire::OpenRequest wanted;
  const OpenKind kind;
  Access access;
  ExportCatalogue& catalogue;
  const Services& services;
  rtrs::Reactor* const reactor;

  Wakeup event;                 ///< awaited by the routine
  std::shared_ptr<void> timer;  ///< limits its time
  std::string line;             ///< OpenLines
  Remedy remedy = Remedy::end_idle_sessions;
  unsigned waits = 0;          ///< for a writer to leave
  std::shared_ptr<void> wait;  ///< likewise, the timer

  int lacks = 0;  ///< errno of a thread that could not do its work
  std::optional<tl::expected<Lease, Refusal>> file;  ///< result
  std::optional<Lease> lease;                        ///< for which the reservation is taken
  std::shared_ptr<ReservationBook::Wish> wish;       ///< for `lease`, with the result
  const WriterCount* claimed = nullptr;              ///< by a CLAIM; null: it is an OPEN
  bool holds_others = false;                         ///< its reservation has begun: MessageOrder
  Routine routine;                                   ///< its steps, and the answer

 private:
  std::atomic<OpenStep> step_{OpenStep::judging};
};

/// The reason why a device is not opened, or not claimed.
Failure refusal_of(const std::string& name, int error);
/// Refusals for now (EAGAIN), after which the client tries again.
Failure directory_hangs(const std::string& name);
Failure file_hangs(const std::string& name);
/// The server has no more memory, descriptors or threads, as `error` tells.
Failure server_lacks(const std::string& name, int error);

/// Records that sessions which have left do not take part any more, if there are any.
void record_leaving(ExportCatalogue& catalogue, const Services& services, rtrs::Reactor* reactor);

}  // namespace rnbd
