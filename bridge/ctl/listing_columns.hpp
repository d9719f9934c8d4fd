// SPDX-License-Identifier: BSD-3-Clause
// The columns of a listing, and their values.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

using CtlColumns = std::vector<CtlField>;

/// `all`: every field, unless the words of the command choose others.
///
/// Errors: a sentence with the unknown field and the known ones.
tl::expected<CtlColumns, std::string> columns_of(const CtlAction& action, CtlObject object,
                                                 const std::vector<CtlJson>& rows, bool all);
/// Null: there is no value.
const CtlField* find_field(CtlObject object, std::string_view name);
/// The value in the unit of the command.
CtlJson value_of(const CtlAction& action, const CtlField& field, const CtlJson& row);
/// The same as text, with `unknown` for null.
std::string text_in(const CtlAction& action, const CtlField& field, const CtlJson& row,
                    const char* unknown);

}  // namespace rnbd
