// SPDX-License-Identifier: BSD-3-Clause
// The links that udev makes to disks of the kernel.
#pragma once

#include <string>

#include "bridge/ctl/kernel_devices.hpp"

namespace rnbd {

/// "/dev/rnbd/by-name/NAME"
std::string link_of_mapping(const std::string& name);

/// Returns when udev has made the link of the device. "", or a warning when it has not in time. It
/// does not wait where no udev runs.
///
/// Units: seconds. Source: contrib/udev/60-rnbd.rules.in.
std::string await_link(const std::string& root, const KernelDevice& device, double patience);

}  // namespace rnbd
