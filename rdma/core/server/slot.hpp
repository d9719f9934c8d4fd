// SPDX-License-Identifier: BSD-3-Clause
// The server's record of each permit: its newest write, and how that ended.
#pragma once

#include <cstdint>

#include "rdma/core/server/request.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// Belongs to the session and not to a path. Reads are not in it: they change nothing.
struct ServerSlot {
  std::uint32_t generation = 0;  ///< of the newest request
  bool used = false;             ///< there has been one
  int status = 0;                ///< errno of its end; valid when nothing executes
  ServerRequest* executing = nullptr;
  ServerRequest* waiting = nullptr;  ///< the same request on other paths; they get the same answer
};

/// The server's decision on a request.
enum class SlotVerdict : std::uint8_t {
  execute,
  attach,     ///< answer when the executing one ends
  follow,     ///< execute when the executing one has ended
  answer,     ///< answer with the slot's status, now
  drop,       ///< no answer: nobody waits for it any more
  forbidden,  ///< the client uses a permit before its answer: the session ends
};

/// Judges a write of a peer that numbers the uses of its permits, and remembers the new one.
///
/// Source: docs/protocol.md, RTRS extension.
SlotVerdict judge(ServerSlot& slot, std::uint32_t generation, bool settle);

/// The same for a peer without generations (Linux). A request for a permit with an executing write
/// is the same write, sent again because its path seems dead, or a new one. It may be new because
/// the first may have been reported as failed when no path was left. If its caller has changed the
/// data meanwhile, the two cannot be told apart.
///
/// Source: docs/protocol.md, several paths.
SlotVerdict judge_resent(const ServerSlot& slot, const ServerRequest& request);

/// Takes a request out of those that wait.
void stop_waiting(ServerSlot& slot, const ServerRequest& request);

}  // namespace rtrs
