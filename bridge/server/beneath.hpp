// SPDX-License-Identifier: BSD-3-Clause
// Opens files below a directory, and never one outside of it, despite names or links that lead out.
#pragma once

#include <string>

#include "rdma/owned_fd.hpp"

namespace rnbd {

enum class Links {
  refuse,
  follow  ///< follows links that stay below the directory
};

/// True if the kernel offers openat2(). Old kernels do not have it. Sandboxes forbid it because
/// they cannot inspect its arguments (systemd does with RestrictSUIDSGID=).
bool has_openat2(int directory);

/// Opens a file with O_PATH, which identifies the file without access to its contents. `flags` may
/// be O_DIRECTORY. Without `use_openat2` it goes step by step, which is as safe. May block, as any
/// file access may.
///
/// Errors: none and errno: as open(2); EXDEV (it leads out of the directory); ELOOP (a loop of
///         links, one that must not be followed, or one of /proc that is no name); EAGAIN (the
///         kernel could not be sure, because of renames).
/// Source: openat2(2), RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS.
rtrs::OwnedFd open_beneath(int directory, const std::string& name, int flags, Links links,
                           bool use_openat2);

}  // namespace rnbd
