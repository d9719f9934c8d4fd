// SPDX-License-Identifier: BSD-3-Clause
// Programs of rnbdkit that run, and cannot be asked, because their control sockets are not found.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/programs.hpp"

namespace rnbd {

struct HiddenProgram {
  bool server = false;
  std::string text;         ///< who it is, and what to do about it
  std::string socket = {};  ///< its control socket, which is elsewhere; "": none is found
};

/// Processes that have none of the sockets of `known`, by /proc below `root`. Those of other users
/// are not looked into, unless root asks: their arguments tell a server's. Source: proc(5),
/// net/unix.
std::vector<HiddenProgram> find_hidden_programs(const std::string& root,
                                                const std::vector<CtlProgram>& known);

}  // namespace rnbd
