// SPDX-License-Identifier: BSD-3-Clause
// The life of rnbd-server from its settings to its exit status.
#pragma once

#include "bridge/daemon/server/command_line.hpp"

namespace rnbd {

/// Opens, listens, announces, serves until a signal, drains. Returns the exit status.
int run_daemon(const Invocation& invocation);

}  // namespace rnbd
