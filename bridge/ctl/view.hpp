// SPDX-License-Identifier: BSD-3-Clause
// Formats the answer of a control socket for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace rnbd {

/// Formats an object as `name: value` lines and a table for each list of objects. "" if it is
/// empty.
std::string readable(const nlohmann::ordered_json& answer);

}  // namespace rnbd
