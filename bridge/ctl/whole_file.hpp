// SPDX-License-Identifier: BSD-3-Clause
// Files that are replaced as a whole: keys, certificates, mappings.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/owned_fd.hpp"

namespace rnbd {

/// Writes a new file and renames it to `path`, so that a reader sees the old file or the new one. A
/// new file has `mode` from its first byte on. A replacement keeps the owner, group and permissions
/// of the old file.
///
/// Errors: a sentence of the system.
tl::expected<void, std::string> write_file(const std::string& path, std::string_view text,
                                           mode_t mode);

/// Locks the folder of `path` against other writers until it is closed. It waits for another lock
/// first. Use it to change a file after reading it. The folder must exist.
///
/// Errors: a sentence of the system.
tl::expected<rtrs::OwnedFd, std::string> lock_files_beside(const std::string& path);

/// The same by a file of its own, which only its owner can open: no other user can hold it up. The
/// file stays.
tl::expected<rtrs::OwnedFd, std::string> lock_file(const std::string& path);

}  // namespace rnbd
