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

/// What describe_holder() said of the holder at `address`, and that process is certainly dead: it
/// was one of this boot of this machine, and in this namespace of processes.
///
/// Threads: any.
bool is_certainly_dead(const std::string& described, const std::string& address);

}  // namespace rnbd
