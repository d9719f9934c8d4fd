// SPDX-License-Identifier: BSD-3-Clause
// Rows as people and programs read them: tables, CSV, JSON, XML.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

/// The output of `list`.
///
/// Errors: a sentence about an unknown field.
tl::expected<std::string, std::string> listing(const CtlAction& action,
                                               const CtlInventory& inventory);

/// The output of `show NAME`: every field, unless the command chooses some.
///
/// Errors: likewise, or a sentence if no object has the name, or objects of several kinds have it.
tl::expected<std::string, std::string> showing(const CtlAction& action,
                                               const CtlInventory& inventory);

/// True: `show` finds the device by this name.
bool is_device_named(const CtlJson& row, const std::string& name);

/// A line of names, unless there are none, and a line for each row of texts.
std::string csv_table(const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);
/// An element for each row, inside an element with the same name in the plural.
std::string xml_table(const std::string& name, const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace rnbd
