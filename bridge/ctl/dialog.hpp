// SPDX-License-Identifier: BSD-3-Clause
// A question to a control socket, and its answer.
#pragma once

#include <chrono>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// Longer than any command takes.
constexpr std::chrono::seconds kCtlPatience{30};

struct CtlTrouble {
  int error = 0;     ///< errno
  std::string text;  ///< what to do, without the name of the socket
};

/// Sends a line to the program behind a control socket and returns the line that comes back, both
/// without their ends. Gives up when nothing moves for `patience`.
tl::expected<std::string, CtlTrouble> ask_control_socket(
    const std::string& path, std::string line, std::chrono::seconds patience = kCtlPatience);

}  // namespace rnbd
