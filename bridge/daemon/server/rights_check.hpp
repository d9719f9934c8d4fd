// SPDX-License-Identifier: BSD-3-Clause
// Checks that the settings name the users of every export.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bridge/daemon/server/settings.hpp"

namespace rnbd {

/// True if some listener accepts clients with a proven name.
bool authenticates(const Settings& settings);

/// "" or the mistake in the rights, as a sentence that shows the lines to write.
std::string contradiction_in_rights(const Settings& settings);

/// Adds patterns, separated by commas. "" or the mistake in one of them.
std::string add_patterns(std::vector<std::string>& target, std::string_view list);

}  // namespace rnbd
