// SPDX-License-Identifier: BSD-3-Clause
// The limits of a daemon, and how much of each is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/metrics/exposition.hpp"

namespace rnbd {

/// A limit by the name of its option, or of the setting of its unit.
struct LimitUse {
  std::string name;
  std::uint64_t used = 0;
  std::uint64_t most = 0;
};
using LimitUses = std::vector<LimitUse>;

/// LimitNOFILE (descriptors, without those that are kept from clients), and TasksMax (threads of
/// the control group) if there is one.
///
/// Threads: any.
LimitUses limits_of_process();

/// `limit_used` and `limit`, by name.
void add_limits(Exposition& page, const LimitUses& limits);
/// For `status`: a list of {limit, used, most}.
Json status_of_limits(const LimitUses& limits);

}  // namespace rnbd
