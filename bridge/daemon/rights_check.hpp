// SPDX-License-Identifier: BSD-3-Clause
// Whether the settings say of all that is exported who may use it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bridge/daemon/settings.hpp"

namespace rnbd {

/// Some listener lets in clients that prove a name.
bool authenticates(const Settings& settings);

/// "" or what is wrong with the rights, as a sentence that shows the lines to write.
std::string contradiction_in_rights(const Settings& settings);

/// Takes patterns between commas. "" or what is wrong with one of them.
std::string add_patterns(std::vector<std::string>& target, std::string_view list);

}  // namespace rnbd
