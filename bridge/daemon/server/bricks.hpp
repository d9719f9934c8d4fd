// SPDX-License-Identifier: BSD-3-Clause
// The state of a server's bricks, for people.
#pragma once

#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/server/catalogue.hpp"

namespace rnbd {

/// The command `brick` of the control socket.
///
/// Threads: as server_commands(). It waits for the bricks' threads.
/// Source:  rnbd-ctl(8).
std::vector<ControlCommand> brick_commands(const ExportCatalogue& catalogue);

}  // namespace rnbd
