// SPDX-License-Identifier: BSD-3-Clause
// The way of all that rnbd-ctl says. Texts of others cannot steer a terminal, and what was not
// written is not forgotten.
#pragma once

#include <string>

#include "bridge/daemon/cli.hpp"

namespace rnbd {

/// Lines for standard output.
void say(const std::string& text);
/// "rnbd-ctl: TEXT" for standard error, behind what was said; or "rnbd-ctl COMMAND: TEXT".
void complain(const std::string& text, const std::string& command = "");
/// For a text that is shown again and again, on a terminal.
void clear_terminal();
/// Says why, and returns the exit status.
int leave_early(const EarlyExit& early);
/// False: not all that was said could be written, now or before.
bool is_written();
/// The exit status: `status`, or `unwritten` behind a complaint when not all was written.
int with_output(int status, int unwritten);

}  // namespace rnbd
