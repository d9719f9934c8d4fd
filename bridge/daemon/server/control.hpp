// SPDX-License-Identifier: BSD-3-Clause
// The questions and commands of rnbd-server's control socket.
#pragma once

#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/server/metrics.hpp"
#include "bridge/daemon/server/reload.hpp"
#include "bridge/metrics/meter.hpp"
#include "bridge/server/block_server.hpp"
#include "bridge/server/catalogue.hpp"
#include "rdma/server.hpp"

namespace rnbd {

/// Threads: answer() on any but the server's event loops, between its start() and stop().
/// Source:  rnbd-server(8), CONTROL.
std::vector<ControlCommand> server_commands(rtrs::Server& server, const ExportCatalogue& catalogue,
                                            const BlockServer& handler, const MeterBook& meters,
                                            Reloader& reloader, const ServerMetrics& metrics);

}  // namespace rnbd
