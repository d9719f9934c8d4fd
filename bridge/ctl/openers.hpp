// SPDX-License-Identifier: BSD-3-Clause
// The users of a device of the kernel, which must not disappear while they use it.
#pragma once

#include <string>
#include <vector>

namespace rnbd {

/// "mounted at /mnt", "swap", "held by dm-0", "open in 123 (dd)". Without any of these, "mounted at
/// /mnt for 123 (dd)" in other mount namespaces, or else "in use" if an exclusive user exists that
/// cannot be named. Empty: no user.
///
/// Source: proc(5), mount_namespaces(7); holders/ below /sys/block/nbdN and its partitions;
/// open(2), O_EXCL.
std::vector<std::string> openers_of(const std::string& root, const std::string& device);

/// udev looks at each new disk, and leaves it by itself. True: nobody else is among these openers.
bool is_only_udev(const std::vector<std::string>& openers);

}  // namespace rnbd
