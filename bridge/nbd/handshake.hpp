// The beginning of an NBD connection: which export, and what both sides understand.
#pragma once

#include <optional>

#include "bridge/nbd/exports.hpp"

namespace rnbd::nbd {

/// What a client and we have agreed on.
struct Agreement {
  Lease device;
  bool structured = false;    ///< replies are structured
  bool block_status = false;  ///< the client has chosen base:allocation
};

/// Haggles until the client has chosen an export. A client that says nothing for a minute, or
/// nonsense, has lost its chance.
///
/// Errors:  none when the client left or was sent away; `log` knows why.
/// Threads: blocks; any.
/// Source:  the NBD protocol, fixed newstyle negotiation.
std::optional<Agreement> shake_hands(int socket, Exports& exports, const rtrs::Log& log,
                                     const Interrupt& interrupt);

}  // namespace rnbd::nbd
