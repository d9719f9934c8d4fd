// SPDX-License-Identifier: BSD-3-Clause
// Opens files below a directory and nothing outside of it, whatever names and links say.
#pragma once

#include <string>

#include "rdma/owned_fd.hpp"

namespace rnbd {

enum class Links {
  refuse,
  follow  ///< those that stay below the directory
};

/// Whether the kernel's own way can be used: old kernels do not have it, and sandboxes hide it
/// because they cannot look into its arguments (systemd does with RestrictSUIDSGID=).
bool has_openat2(int directory);

/// Opens with O_PATH, which proves that the file is the right one and reads nothing. `flags` may be
/// O_DIRECTORY. `use_openat2` false: step by step, which is as safe. May block as any file access
/// may.
///
/// Errors: none and errno: as open(2); EXDEV (it leads out of the directory); ELOOP (a loop of
///         links, one that must not be followed, or one of /proc that is no name); EAGAIN (the
///         kernel could not be sure, because of renames).
/// Source: openat2(2), RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS.
rtrs::OwnedFd open_beneath(int directory, const std::string& name, int flags, Links links,
                           bool use_openat2);

}  // namespace rnbd
