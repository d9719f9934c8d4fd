// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl keys: which keys and certificates there are, and an end to one.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/cli.hpp"

namespace rnbd {

/// Reads the command line behind `rnbd-ctl` and does what it says; `done` has how that went.
std::optional<EarlyExit> run_key_list(int argc, const char* const* argv,
                                      tl::expected<void, std::string>& done);

}  // namespace rnbd
