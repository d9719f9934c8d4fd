// SPDX-License-Identifier: BSD-3-Clause
// The way of all that rnbd-ctl says, and the look of it. Texts of others cannot steer a terminal,
// and what was not written is not forgotten.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tl/expected.hpp>
#include <vector>

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

/// Formats an object as `name: value` lines and a table for each list of objects. "" if it is
/// empty.
std::string readable(const nlohmann::ordered_json& answer);

/// The result of a command.
struct CtlOutcome {
  int status = 0;          ///< the exit status
  std::string out = {};    ///< for standard output
  std::string error = {};  ///< a sentence for standard error
};

inline CtlOutcome outcome_of(const tl::expected<std::string, std::string>& text) {
  return text ? CtlOutcome{0, *text, ""} : CtlOutcome{1, "", text.error()};
}

/// The command has failed so, too.
void add_complaints(const std::vector<std::string>& sentences, CtlOutcome& outcome);

/// "0.5 s"
std::string in_seconds(double seconds);

}  // namespace rnbd
