// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl's own commands, which are about all running programs.
#pragma once

#include <optional>

namespace rnbd {

/// Runs the command if the first word that is no option begins one, and returns the exit status.
std::optional<int> run_ctl_words(int argc, const char* const* argv);

}  // namespace rnbd
