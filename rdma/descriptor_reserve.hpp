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

/// The number that a client may take, with all that is in use: the last ones are kept.
inline rlim_t descriptors_for_all(rlim_t limit) {
  return limit - std::min(kReservedDescriptors, limit / 4);
}

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

/// Whether at most as many descriptors are left as `kept` says of the limit, once the program has
/// opened `to_come` more.
///
/// Threads: any.
inline bool are_fewer_left(rlim_t to_come, rlim_t (*kept)(rlim_t limit)) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (lowest < 0) return true;
  ::close(lowest);
  return static_cast<rlim_t>(lowest) + to_come + kept(limit.rlim_cur) >= limit.rlim_cur;
}

/// Whether so few descriptors are left that those who have many should get no more: a quarter of
/// all, and never less than twice the reserve.
///
/// Threads: any.
inline bool are_descriptors_scarce() {
  return are_fewer_left(0, [](rlim_t limit) {
    return std::max(2 * std::min(kReservedDescriptors, limit / 4), limit / 4);
  });
}

/// The number that exports leave to clients: about as many as those leave who have many. Where
/// there are few of them anyway, only the reserve. A larger limit never means fewer for exports.
inline rlim_t descriptors_kept_from_exports(rlim_t limit) {
  constexpr rlim_t kFew = 128;
  constexpr rlim_t kOfFew = kFew - kFew / 4;
  if (limit <= kFew) return limit - descriptors_for_all(limit);
  const rlim_t kept = std::max(std::min(2 * kReservedDescriptors, limit / 2), limit / 4);
  return std::min(kept, limit - kOfFew);
}

/// Whether so few descriptors are left that exports should wait, because clients need them.
/// `to_come`: those that the program will open.
///
/// Threads: any.
inline bool are_descriptors_for_clients(int to_come = 0) {
  return are_fewer_left(static_cast<rlim_t>(to_come), descriptors_kept_from_exports);
}

}  // namespace rtrs
