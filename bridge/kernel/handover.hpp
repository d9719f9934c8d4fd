// SPDX-License-Identifier: BSD-3-Clause
// The state that a bridge leaves to its successor, in a file in memory.
#pragma once

#include <optional>
#include <string>

namespace rnbd::kernel {

struct LeftBehind {
  unsigned index = 0;      ///< of /dev/nbdN
  std::string identifier;  ///< of the disk there
  std::string unread;      ///< bytes of requests that were received but not started
};

/// Returns a descriptor of the file, or -1 and errno.
int leave_behind(const LeftBehind& left);

/// Reads the file and marks it as taken, because its requests must not be served twice. Closes the
/// descriptor. None: the file has another version, was taken before, or is damaged.
std::optional<LeftBehind> take_left_behind(int fd);

}  // namespace rnbd::kernel
