// SPDX-License-Identifier: BSD-3-Clause
// The links that udev makes to disks of the kernel.
#pragma once

#include <string>

#include "bridge/ctl/kernel_devices.hpp"

namespace rnbd {

/// "/dev/rnbd/by-name/NAME"
std::string link_of_mapping(const std::string& name);
/// "/dev/rnbd/by-uuid/UUID"
std::string link_of_uuid(const std::string& uuid);

/// A device by its name in the kernel when the word is a link to it, below /dev. A link of udev
/// that is gone, as its disk may be, stands for the name or the UUID in it. Other words stay as
/// they are.
std::string without_link(const std::string& root, const std::string& word);

/// Returns when udev has made the link of the device. "", or a warning when it has not in time. It
/// does not wait where no udev runs.
///
/// Units: seconds. Source: contrib/udev/60-rnbd.rules.in.
std::string await_link(const std::string& root, const KernelDevice& device, double patience);

}  // namespace rnbd
