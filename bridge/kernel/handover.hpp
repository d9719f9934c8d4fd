// SPDX-License-Identifier: BSD-3-Clause
// A bridge's legacy to its successor, in a file in memory.
#pragma once

#include <optional>
#include <string>

namespace rnbd::kernel {

struct LeftBehind {
  unsigned index = 0;      ///< of /dev/nbdN
  std::string identifier;  ///< of the disk there
  std::string unread;      ///< bytes of requests that were received and not begun
};

/// Returns a descriptor of the file; -1 and errno: it cannot be had.
int leave_behind(const LeftBehind& left);

/// Reads it, and marks it: nobody takes the same twice, because the requests behind it are served
/// then. Closes the descriptor. None: it is of another version, was taken before, or is damaged.
std::optional<LeftBehind> take_left_behind(int fd);

}  // namespace rnbd::kernel
