// SPDX-License-Identifier: BSD-3-Clause
// Rows for programs: CSV, JSON, XML.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/listing_columns.hpp"

namespace rnbd {

/// In the format of the command, which is none for people.
std::string for_programs(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                         const std::vector<CtlJson>& list);

}  // namespace rnbd
