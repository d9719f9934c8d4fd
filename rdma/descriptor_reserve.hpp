// SPDX-License-Identifier: BSD-3-Clause
// Descriptors that nobody gets by connecting.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

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

/// Whether so few descriptors are left that those who have many should get no more: a quarter of
/// all, and never less than twice the reserve.
///
/// Threads: any.
inline bool are_descriptors_scarce() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (lowest < 0) return true;
  ::close(lowest);
  const rlim_t reserve = std::min(kReservedDescriptors, limit.rlim_cur / 4);
  return static_cast<rlim_t>(lowest) + std::max(2 * reserve, limit.rlim_cur / 4) >= limit.rlim_cur;
}

/// Whether so few descriptors are left that exports should wait, because clients need them. These
/// few are a quarter of all, and fewer where there are not many anyway.
///
/// Threads: any.
inline bool are_descriptors_for_clients() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (lowest < 0) return true;
  ::close(lowest);
  constexpr rlim_t kFew = 1024;
  const rlim_t kept = limit.rlim_cur < kFew ? std::min(kReservedDescriptors, limit.rlim_cur / 4)
                                            : limit.rlim_cur / 4;
  return static_cast<rlim_t>(lowest) + kept >= limit.rlim_cur;
}

}  // namespace rtrs
