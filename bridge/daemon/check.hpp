// SPDX-License-Identifier: BSD-3-Clause
// --check-config: what would become of a server that is started now.
#pragma once

#include "bridge/daemon/command_line.hpp"

namespace rnbd {

/// Opens and closes what is to be exported, and tells all that is wrong in the order of the file.
/// Returns the exit status.
int check_configuration(const Invocation& invocation);

}  // namespace rnbd
