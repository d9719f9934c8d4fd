// SPDX-License-Identifier: BSD-3-Clause
// The changes to make when the configuration is read again.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bridge/daemon/server/settings.hpp"
#include "bridge/server/catalogue.hpp"

namespace rnbd {

struct ReloadPlan {
  std::vector<std::string> added, changed, removed;  ///< names of exports
  std::size_t kept = 0;                              ///< exports of which nothing changes
  std::vector<std::string> needs_restart;            ///< settings that stay as they are until then
  std::vector<std::string> must_be_free;  ///< exports that nobody may have open, to be changed so
  bool sessions_limited_anew = false;     ///< the limits of sessions change
  bool directed_anew = false;             ///< advertised addresses, or referrals
  std::vector<std::string> faults;        ///< sentences; any: nothing is to be done
  CatalogueChange change;
};

/// From the server's present settings to the new ones. Pure.
ReloadPlan plan_reload(const Settings& now, const Settings& next);

/// The settings that are in force after the plan was carried out.
Settings after_reload(const Settings& now, const Settings& next);

}  // namespace rnbd
