// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl discover: lists the exports of a server. It needs no running program on this machine.
#pragma once

#include <optional>

namespace rnbd {

/// Runs the command if the first argument names it, and returns the exit status.
std::optional<int> run_discover(int argc, const char* const* argv);

}  // namespace rnbd
