// SPDX-License-Identifier: BSD-3-Clause
// Descriptors that nobody gets by connecting.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace rtrs {

/// Descriptors kept for clients that are attached: files that are opened, records that are written,
/// connections that are made. A small limit keeps a quarter.
inline constexpr rlim_t kReservedDescriptors = 64;

/// Whether a descriptor that was just given to somebody leaves fewer than that. The system gives
/// the lowest one that is free, so all below it are in use.
///
/// Threads: any.
inline bool is_reserved(int descriptor) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const rlim_t reserve = std::min(kReservedDescriptors, limit.rlim_cur / 4);
  return static_cast<rlim_t>(descriptor) + reserve >= limit.rlim_cur;
}

}  // namespace rtrs
