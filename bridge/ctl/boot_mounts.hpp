// SPDX-License-Identifier: BSD-3-Clause
// Mounts of the boot whose disk does not come with the next boot.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/kernel_devices.hpp"

namespace rnbd {

/// A line of /etc/fstab that the next boot cannot mount.
struct MountWithoutDisk {
  std::string link;          ///< "/dev/rnbd/by-name/disk0"
  std::string point;         ///< "none" of swap
  bool awaited = true;       ///< the boot fails without it
  std::string mapping = {};  ///< in the link, or until the next boot; "": a UUID alone
  std::string keep = {};     ///< the command that makes the mapping last; "": there is none
};

/// Those that are to be mounted at boot. Lines with a UUID only count as long as it is known
/// of all mappings.
std::vector<MountWithoutDisk> mounts_without_disk(const std::string& root,
                                                  const std::vector<KernelDevice>& devices);

}  // namespace rnbd
