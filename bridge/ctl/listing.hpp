// SPDX-License-Identifier: BSD-3-Clause
// Rows as people and programs read them: tables, CSV, JSON, XML.
#pragma once

#include <string>
#include <tl/expected.hpp>

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

/// Whether `show` finds the device by this name.
bool is_device_named(const CtlJson& row, const std::string& name);

}  // namespace rnbd
