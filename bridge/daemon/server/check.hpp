// SPDX-License-Identifier: BSD-3-Clause
// --check-config: tells whether a server could start now.
#pragma once

#include "bridge/daemon/server/command_line.hpp"

namespace rnbd {

/// Opens and closes all exports, and reports every mistake in the order of the file. Returns the
/// exit status.
int check_configuration(const Invocation& invocation);

}  // namespace rnbd
