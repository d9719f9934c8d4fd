// SPDX-License-Identifier: BSD-3-Clause
// Rows for programs: CSV, JSON, XML.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/listing_columns.hpp"

namespace rnbd {

/// A line of names, unless there are none, and a line for each row of texts.
std::string csv_table(const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);
/// An element for each row, inside an element with the same name in the plural.
std::string xml_table(const std::string& name, const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);

/// The rows in the format of the command, which must be one for programs.
std::string for_programs(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                         const std::vector<CtlJson>& list);

}  // namespace rnbd
