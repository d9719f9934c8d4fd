// SPDX-License-Identifier: BSD-3-Clause
// Whether the settings name the users of every export.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bridge/daemon/server/settings.hpp"

namespace rnbd {

/// Some listener lets in clients that prove a name.
bool authenticates(const Settings& settings);

/// "" or the mistake in the rights, as a sentence that shows the lines to write.
std::string contradiction_in_rights(const Settings& settings);

/// Takes patterns between commas. "" or the mistake in one of them.
std::string add_patterns(std::vector<std::string>& target, std::string_view list);

}  // namespace rnbd
