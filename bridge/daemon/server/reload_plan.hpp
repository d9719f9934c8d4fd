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
  std::size_t kept = 0;                              ///< exports without a change
  std::vector<std::string> needs_restart;  ///< settings that keep their old values until a restart
  std::vector<std::string> must_be_free;   ///< exports that no client may have open for this change
  bool sessions_limited_anew = false;      ///< the limits of sessions change
  bool directed_anew = false;              ///< advertised addresses, or referrals
  std::vector<std::string> faults;         ///< sentences; any: nothing is to be done
  CatalogueChange change;
};

/// Compares the server's present settings with the new ones. Pure.
ReloadPlan plan_reload(const Settings& now, const Settings& next);

/// The settings after the plan.
Settings after_reload(Settings now, Settings next);

}  // namespace rnbd
