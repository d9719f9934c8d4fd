// SPDX-License-Identifier: BSD-3-Clause
// The users of a device of the kernel: it must not be taken away from under them.
#pragma once

#include <string>
#include <vector>

namespace rnbd {

/// "mounted at /mnt", "swap", "held by dm-0", "open in 123 (dd)", and last "in use" if nobody is
/// found who has it for himself, as in another mount namespace. Empty: nobody.
///
/// Source: proc(5); holders/ below /sys/block/nbdN and its partitions; open(2), O_EXCL.
std::vector<std::string> openers_of(const std::string& root, const std::string& device);

}  // namespace rnbd
