// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl check: whether all that runs is well, for monitoring.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bridge/ctl/fstab.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

struct CtlVerdict {
  CtlHealth health = CtlHealth::ok;
  std::string text;  ///< for people and monitoring, or JSON
};

/// The things that this machine's files say are to be there.
struct CtlExpected {
  /// Those that have a file, with the names of the processes that serve them: see bridge_of().
  std::map<std::string, std::string> mappings = {};
  std::vector<MissingMount> unmounted = {};  ///< of disks that are there
  std::vector<MountWithoutDisk> without_disk = {};
  bool server = false;  ///< it has a configuration file
};

/// The verdict on all of it, or on what is named. A report of a disk of an annex has the answer to
/// its question in its status, by the name of the annex. Pure.
CtlVerdict verdict_on(const CtlAction& action, const CtlReports& reports,
                      const std::vector<KernelDevice>& kernel_devices, const CtlExpected& expected);

/// Asks, and judges.
CtlVerdict check_all(const CtlAction& action);

}  // namespace rnbd
