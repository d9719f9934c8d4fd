// SPDX-License-Identifier: BSD-3-Clause
// Rows for programs: CSV, JSON, XML.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/listing_columns.hpp"

namespace rnbd {

/// A line of names, unless there are none, and one for each row of texts.
std::string csv_table(const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);
/// An element for each row, in one that is called alike, with an s.
std::string xml_table(const std::string& name, const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows);

/// In the format of the command, which is none for people.
std::string for_programs(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                         const std::vector<CtlJson>& list);

}  // namespace rnbd
