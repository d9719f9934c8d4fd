// SPDX-License-Identifier: BSD-3-Clause
// Which process holds an image's lock: what lets its successor on the same machine take the lock at
// once, instead of half a minute later.
#pragma once

#include <string>

namespace rnbd {

/// This process, as holder of a lock by the cluster's name for it (an address). Empty: it cannot be
/// told.
///
/// Threads: any.
std::string describe_holder(const std::string& address);

/// True: the process that described itself so, at `address`, is certainly dead. It belonged to
/// this boot of this machine and to this namespace of processes.
///
/// Threads: any.
bool is_certainly_dead(const std::string& described, const std::string& address);

}  // namespace rnbd
