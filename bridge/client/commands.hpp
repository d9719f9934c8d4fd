// SPDX-License-Identifier: BSD-3-Clause
// What a client is asked and told over its control socket.
#pragma once

#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/control/commands.hpp"

namespace rnbd {

/// status, add-path, remove-path, disconnect, reconnect, policy. What they refer to must outlive
/// them.
///
/// Threads: any.
/// Source:  rnbd-ctl(8).
std::vector<ControlCommand> client_commands(const ClientConfig& config, Connections& connections);

}  // namespace rnbd
