// SPDX-License-Identifier: BSD-3-Clause
// How rnbd-ctl shows an answer.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace rnbd {

/// An object for people: `name: value` lines, and a table for each list of objects. "" for an empty
/// one.
std::string readable(const nlohmann::ordered_json& answer);

}  // namespace rnbd
