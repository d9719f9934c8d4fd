// SPDX-License-Identifier: BSD-3-Clause
// One question to a control socket, and its answer.
#pragma once

#include <chrono>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// Longer than any command takes.
constexpr std::chrono::seconds kCtlPatience{30};

struct CtlTrouble {
  int error = 0;     ///< errno
  std::string text;  ///< the remedy, without the name of the socket
};

/// Sends a line to a control socket and returns the answer, both without end of line. Gives up
/// after `patience` without progress.
tl::expected<std::string, CtlTrouble> ask_control_socket(
    const std::string& path, std::string line, std::chrono::seconds patience = kCtlPatience);

}  // namespace rnbd
