// SPDX-License-Identifier: BSD-3-Clause
// An OPEN or CLAIM while one of its steps may hang.
#pragma once

#include <atomic>
#include <optional>

#include "bridge/server/block_session.hpp"

namespace rnbd {

/// Shared by the session, the thread that does the work and the timer. Once it is late, its request
/// has been answered and the session may be gone. Then the work's callback calls let_go(), and
/// touches nothing else.
///
/// Threads: the session's reactor; the results belong to the working thread until it is done.
struct BlockSession::Opening {
  enum class State : std::uint8_t { running, over, late };

  Opening(rtrs::ServerRequest& open, wire::OpenRequest what, OpenKind how,
          const BlockSession& session)
      : request{open},
        wanted{std::move(what)},
        open_kind{how},
        access{wanted.mode, how == OpenKind::again ? session.facts_.uuid : wire::Uuid{}},
        catalogue{session.catalogue_},
        surroundings{session.surroundings_},
        reactor{session.queues_.reactor()} {}

  const std::string& name() const { return wanted.device_name; }
  /// Releases results that came too late. The client has not used them, so an earlier reservation
  /// of its own stays, as if it had been cut off.
  void let_go();

  rtrs::ServerRequest& request;
  const wire::OpenRequest wanted;
  const OpenKind open_kind;
  Access access;
  std::optional<wire::Claim> claim;  ///< of an open device
  ExportCatalogue& catalogue;
  const Surroundings& surroundings;
  rtrs::Reactor* const reactor;

  std::atomic<State> state{State::running};
  std::shared_ptr<void> timer;
  std::string line;             ///< OpenLines
  bool being_reserved = false;  ///< of the session's reservations_under_way_
  bool renewed = false;         ///< it was checked that the storage still exists
  bool reclaimed = false;       ///< idle sessions have been ended for it
  unsigned waits = 0;           ///< for a writer to leave
  std::shared_ptr<void> wait;
  std::optional<tl::expected<Lease, Refusal>> file;  ///< result
  std::optional<Lease> lease;                        ///< for which the reservation is taken
  tl::expected<void, std::string> reservation;       ///< result
};

/// Why a device is not opened, or not claimed.
Failure refusal_of(const std::string& name, int error);
/// A refusal for now (EAGAIN), after which the client tries again.
Failure directory_hangs(const std::string& name);

}  // namespace rnbd
