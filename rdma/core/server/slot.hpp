// SPDX-License-Identifier: BSD-3-Clause
// The server's record of each permit: its newest write, and the outcome of that.
#pragma once

#include <cstdint>

#include "rdma/core/server/request.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// The record of one permit, for the session and not per path. It holds only writes, because reads
/// change nothing.
struct ServerSlot {
  std::uint32_t generation = 0;  ///< of the newest write; without generations 0
  bool used = false;             ///< `generation` is valid
  int status = 0;                ///< errno of the newest write; valid when nothing executes
  ServerRequest* executing = nullptr;
  ServerRequest* waiting = nullptr;  ///< requests from other paths that attach or follow; a list
};

/// The server's decision on a write.
enum class SlotVerdict : std::uint8_t {
  execute,
  attach,        ///< a copy of the executing write: give it the same answer
  follow,        ///< judge it again when the executing write has ended
  answer,        ///< answer it at once with the slot's status
  answer_older,  ///< a copy behind a newer write: the client has its answer already
  forbidden,     ///< end the session: the client used the permit before it had the answer
};

/// Judges a write of a client with generations (kFeatureExactlyOnce), and records a new one.
/// `settle`: the flag wire::kSettle.
///
/// Source: docs/protocol.md, RTRS extension.
SlotVerdict judge(ServerSlot& slot, std::uint32_t generation, bool settle);

/// The same for a client without generations (Linux). If a write with this permit executes, the new
/// one is a copy, sent again because the client lost a path. Or it is another write, because the
/// client had no path left and told the caller that the first one failed. Message and data decide.
/// A copy whose caller has changed the data meanwhile counts as another write.
///
/// Source: docs/protocol.md, several paths.
SlotVerdict judge_resent(const ServerSlot& slot, const ServerRequest& request);

/// Removes a request from those that wait in the slot.
void stop_waiting(ServerSlot& slot, const ServerRequest& request);

}  // namespace rtrs
