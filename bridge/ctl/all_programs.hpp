// SPDX-License-Identifier: BSD-3-Clause
// The commands of rnbd-ctl that concern all running programs.
#pragma once

#include <optional>

namespace rnbd {

/// Runs the command if the first word, options aside, is one. Returns the exit status.
std::optional<int> run_ctl_words(int argc, const char* const* argv);

}  // namespace rnbd
