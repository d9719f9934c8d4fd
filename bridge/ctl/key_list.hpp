// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl keys: lists keys and certificates, and removes a key.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/cli.hpp"

namespace rnbd {

/// Runs the command line behind `rnbd-ctl`; `done` gets the result.
std::optional<EarlyExit> run_key_list(int argc, const char* const* argv,
                                      tl::expected<void, std::string>& done);

}  // namespace rnbd
