// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl discover: the exports of a server, which needs no running program here.
#pragma once

#include <optional>

namespace rnbd {

/// Runs the command if the first argument names it, and returns the exit status.
std::optional<int> run_discover(int argc, const char* const* argv);

}  // namespace rnbd
