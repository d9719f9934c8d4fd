// SPDX-License-Identifier: BSD-3-Clause
// Takes a device away from the kernel, whatever has become of the program behind it.
#pragma once

#include <string>

namespace rnbd {

/// Requests that wait end with EIO. `device` is nbdN. Takes CAP_SYS_ADMIN. Returns "" or the
/// reason why it stays, as a sentence.
std::string disconnect_kernel_device(const std::string& device);

}  // namespace rnbd
