// SPDX-License-Identifier: BSD-3-Clause
// Carries out what is to be done with sessions and paths, and tells what comes of it.
#pragma once

#include "bridge/ctl/outcome.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

/// `add`, `delete`, `readd`, `disconnect`, `reconnect`, `recover` and `close`. Paths that are told
/// to connect are waited for, and it fails if one of them does not.
CtlOutcome steer(const CtlAction& action);

/// The time that a command waits at most, in seconds; `usual` if it does not say.
///
/// Errors: a sentence about a word that is no time.
tl::expected<double, std::string> seconds_to_wait(const CtlAction& action, double usual);

}  // namespace rnbd
