// SPDX-License-Identifier: BSD-3-Clause
// Tells which process holds an image's lock. With that, its successor on the same machine takes the
// lock at once, and not half a minute later.
#pragma once

#include <string>

namespace rnbd {

/// Describes this process as the holder of a lock. The cluster knows it by `address`. Empty: the
/// system does not tell enough.
///
/// Threads: any.
std::string describe_holder(const std::string& address);

/// True if the process with this description, at `address`, is certainly dead. That can be known
/// only of a process of this boot, this machine and this namespace of processes.
///
/// Threads: any.
bool is_certainly_dead(const std::string& described, const std::string& address);

}  // namespace rnbd
