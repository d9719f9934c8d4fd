// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl keygen, certgen and keys: keys for TLS are made, listed and removed without a running
// program.
#pragma once

#include <optional>

namespace rnbd {

/// Runs the command if the first argument names one of these, and returns the exit status.
std::optional<int> run_key_command(int argc, const char* const* argv);

}  // namespace rnbd
