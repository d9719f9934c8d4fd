// SPDX-License-Identifier: BSD-3-Clause
// The commands that running programs answer over their control sockets, for the help of rnbd-ctl:
// it must not need the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/ctl/annexes.hpp"

namespace rnbd {

/// The commands of all programs, and then those of annexes.
std::vector<ProgramWord> program_words();

/// A line of a help. A long left side has a line of its own.
std::string two_columns(std::string_view left, std::string_view right);
/// A line for each command, with a title.
std::string help_on_program_words(CtlSide side);
/// The help that the words behind rnbd-ctl ask for: `server reload --help`, `disk0 status -h`,
/// `status --help`; nullopt: none on such a command.
std::optional<std::string> help_on_program_word(const std::vector<std::string>& words);

}  // namespace rnbd
