// SPDX-License-Identifier: BSD-3-Clause
// Common behaviour of all command lines: help, version, guesses, messages.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// The reason to end before the start: `--help`, or a mistake.
struct EarlyExit {
  int status = 0;    ///< 0 help or version, 1 a passing trouble, 2 wrong command line or file
  std::string text;  ///< for standard output when status is 0, else for standard error
};

/// A mistake of the command line.
EarlyExit usage_error(const CLI::App& app, const std::string& text);

/// Parses, with --help, --version, and guesses at typing mistakes. `stray` has the advice about an
/// argument that belongs to no option.
std::optional<EarlyExit> parse_arguments(CLI::App& app, const std::string& examples,
                                         const std::string& stray, int argc,
                                         const char* const* argv);

/// "" or the reason why an option's value is no number in a range.
std::string complaint_about_number(const std::string& text, unsigned least, unsigned most);

/// "" or the reason why --ready-fd cannot be `fd`.
std::string complaint_about_number_of_ready_fd(const CLI::App& app, int fd);

}  // namespace rnbd
