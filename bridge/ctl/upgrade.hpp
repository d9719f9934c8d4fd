// SPDX-License-Identifier: BSD-3-Clause
// The replacement of a running program by the one that is installed now.
#pragma once

#include <chrono>
#include <string>
#include <tl/expected.hpp>

#include "bridge/ctl/dialog.hpp"

namespace rnbd {

/// Asks the program at this socket to be replaced, and waits until another one answers there.
/// `tell` gets a line for each step. Returns the answer of the new one.
///
/// Errors: a sentence; the program goes on then.
tl::expected<CtlJson, CtlTrouble> upgrade_program(const std::string& socket,
                                                  void (*tell)(const std::string& line));

}  // namespace rnbd
