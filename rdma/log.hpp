// SPDX-License-Identifier: BSD-3-Clause
// How the library talks to its program's log.
#pragma once

#include <functional>
#include <string>

namespace rtrs {

enum class LogLevel { debug, info, warning, error };

/// Receives one line without a newline. May be called from any thread; must not call back into the
/// library.
using Log = std::function<void(LogLevel, const std::string&)>;

}  // namespace rtrs
