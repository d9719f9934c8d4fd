// SPDX-License-Identifier: BSD-3-Clause
// The lines of /etc/fstab that are about disks of rnbdkit, and mounts that are missing or will be.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/kernel_devices.hpp"

namespace rnbd {

struct FstabLine {
  std::string source;  ///< "/dev/rnbd/by-name/disk0-part1"
  std::string text;
  std::string point;      ///< where it is mounted; "none" of swap
  bool automatic = true;  ///< mounted at boot, without the option noauto
  bool awaited = true;    ///< the boot fails without it, as neither noauto nor nofail says
};

/// The lines that name the device, or a partition of it, by a link of udev.
std::vector<FstabLine> fstab_lines_of(const std::string& root, const KernelDevice& device);

/// A line of these that is to be mounted at boot, and is not.
struct MissingMount {
  std::string device;  ///< "nbd0"
  std::string point;
};

/// The missing mounts of the kernel's devices. A mount that systemd makes on demand is there.
/// Source: proc(5), /proc/PID/mountinfo.
std::vector<MissingMount> missing_mounts(const std::string& root,
                                         const std::vector<KernelDevice>& devices);

/// A line of /etc/fstab that the next boot cannot mount.
struct MountWithoutDisk {
  std::string link;          ///< "/dev/rnbd/by-name/disk0"
  std::string point;         ///< "none" of swap
  bool awaited = true;       ///< the boot fails without it
  std::string mapping = {};  ///< in the link, or until the next boot; "": a UUID alone
  std::string keep = {};     ///< the command that makes the mapping last; "": there is none
};

/// The lines that are to be mounted at boot, and cannot be. Lines with a UUID only count as long as
/// it is known of all mappings.
std::vector<MountWithoutDisk> mounts_without_disk(const std::string& root,
                                                  const std::vector<KernelDevice>& devices);

}  // namespace rnbd
