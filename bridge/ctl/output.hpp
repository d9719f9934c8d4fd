// SPDX-License-Identifier: BSD-3-Clause
// The way of all that rnbd-ctl says, and the look of it. Texts of others cannot steer a terminal,
// and what was not written is not forgotten.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace rnbd {

struct EarlyExit;

/// Lines for standard output.
void say(const std::string& text);
/// "rnbd-ctl: TEXT" for standard error, behind what was said; or "rnbd-ctl COMMAND: TEXT".
void complain(const std::string& text, const std::string& command = "");
/// A text that is shown again and again on a terminal begins so.
void clear_terminal();
/// Says why, and returns the exit status.
int leave_early(const EarlyExit& early);
/// False: not all that was said could be written, now or before.
bool is_written();
/// The exit status: `status`, or `unwritten` behind a complaint when not all was written.
int with_output(int status, int unwritten);

/// The exit statuses of a plugin of Nagios or Icinga. Source: Monitoring Plugins Development
/// Guidelines, plugin return codes.
enum class CtlHealth : std::uint8_t { ok = 0, warning = 1, critical = 2, unknown = 3 };

/// The exit status of a command line that cannot be carried out: monitoring would take any other of
/// `check` for a finding.
int status_of_failure(const std::vector<std::string>& words, int usual);

/// One line if nothing is to be indented, with end of line.
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);
/// A value as a word that can be shown.
std::string plain_text(const nlohmann::ordered_json& value);
std::string joined(const std::vector<std::string>& words, const char* between = ", ");
/// Formats an object as `name: value` lines and a table for each list of objects. "" if it is
/// empty.
std::string readable(const nlohmann::ordered_json& answer);

/// The result of a command.
struct CtlOutcome {
  int status = 0;          ///< the exit status
  std::string out = {};    ///< for standard output
  std::string error = {};  ///< a sentence for standard error
};

/// The command has failed so, too.
void add_complaints(const std::vector<std::string>& sentences, CtlOutcome& outcome);

/// "0.5 s"
std::string in_seconds(double seconds);

}  // namespace rnbd
