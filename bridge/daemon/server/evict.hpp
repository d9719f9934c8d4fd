// SPDX-License-Identifier: BSD-3-Clause
// Commands that throw clients out, or prepare a server for its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/server/catalogue.hpp"
#include "rdma/server.hpp"

namespace rnbd {

/// "2026-11-28T23:00:00Z".
///
/// Units: seconds since 1970.
std::string utc_text(std::int64_t seconds);

/// The clients that are out, until when, and the command that lets each in again.
Json status_of_evicted(const EvictedClients& clients);

/// The commands `evict`, `readmit`, `disconnect` and `drain` of the control socket.
///
/// Threads: as server_commands(). They wait for event loops, and drain for clients.
/// Source:  rnbd-ctl(8).
std::vector<ControlCommand> eviction_commands(rtrs::Server& server, ExportCatalogue& catalogue);

}  // namespace rnbd
