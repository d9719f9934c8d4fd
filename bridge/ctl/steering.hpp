// SPDX-License-Identifier: BSD-3-Clause
// Sessions and paths of running programs: which command of which program does what was asked for.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

/// A line for a control socket.
struct CtlStep {
  std::string socket;
  std::string line;
  friend bool operator==(const CtlStep&, const CtlStep&) = default;
};

/// The steps of `add`, `delete`, `readd`, `disconnect`, `reconnect`, `recover` and `close`, in
/// their order. None: there is nothing to do. Pure.
///
/// Errors: a sentence when nothing has the name, or several things have it.
tl::expected<std::vector<CtlStep>, std::string> steps_of(const CtlAction& action,
                                                         const std::vector<CtlReport>& reports);

/// The client programs whose session is called so, by their names. Pure.
std::vector<std::string> programs_of_session(const std::string& session,
                                             const std::vector<CtlReport>& reports);

}  // namespace rnbd
