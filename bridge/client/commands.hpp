// SPDX-License-Identifier: BSD-3-Clause
// The control socket's commands of a client.
#pragma once

#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/control/commands.hpp"

namespace rnbd {

/// status, add-path, remove-path, disconnect, reconnect, policy. The arguments must outlive the
/// commands.
///
/// Threads: any.
/// Source:  rnbd-ctl(8).
std::vector<ControlCommand> client_commands(const ClientConfig& config, Connections& connections);

}  // namespace rnbd
