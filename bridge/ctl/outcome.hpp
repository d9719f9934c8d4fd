// SPDX-License-Identifier: BSD-3-Clause
// The result of a command of rnbd-ctl.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace rnbd {

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
