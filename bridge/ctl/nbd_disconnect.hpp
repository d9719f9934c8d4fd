// SPDX-License-Identifier: BSD-3-Clause
// Disconnects a device of the kernel, even if the program behind it is dead.
#pragma once

#include <string>

namespace rnbd {

/// Waiting requests end with EIO. `device` is nbdN. Needs CAP_SYS_ADMIN. Returns "" or a sentence
/// with the obstacle.
std::string disconnect_kernel_device(const std::string& device);

}  // namespace rnbd
