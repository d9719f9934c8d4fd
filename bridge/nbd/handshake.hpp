// The beginning of an NBD connection: which export, and what both sides understand.
#pragma once

#include <chrono>
#include <optional>

#include "bridge/nbd/exports.hpp"

namespace rnbd::nbd {

/// What a client and we have agreed on.
struct Agreement {
  Lease device;
  bool structured = false;    ///< replies are structured
  bool block_status = false;  ///< the client has chosen base:allocation
};

/// For the whole handshake: a client that haggles holds one of --max-connections.
inline constexpr std::chrono::seconds kHandshakePatience{60};

/// Haggles until the client has chosen an export. A client that has not done so within `patience`,
/// or sends nonsense, has lost its chance; opening its export for the first time is not counted.
///
/// Errors:  none when the client left or was sent away; `log` knows why.
/// Threads: blocks; any.
/// Source:  the NBD protocol, fixed newstyle negotiation.
std::optional<Agreement> shake_hands(int socket, Exports& exports, const rtrs::Log& log,
                                     const Interrupt& interrupt,
                                     std::chrono::milliseconds patience = kHandshakePatience);

}  // namespace rnbd::nbd
