// SPDX-License-Identifier: BSD-3-Clause
// Files that change as a whole: keys, certificates, mappings.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/owned_fd.hpp"

namespace rnbd {

/// Writes a file beside `path` and puts it in its place, so that a reader sees the old one
/// or the new one. It has `mode` from its first byte on; if there was one already, it keeps the
/// owner, the group and the permissions of that.
///
/// Errors: a sentence of the system.
tl::expected<void, std::string> write_file(const std::string& path, std::string_view text,
                                           mode_t mode);

/// Waits until nobody else changes files beside `path`, and lets nobody until it is closed: for
/// changes of what was read. Its directory must be there.
///
/// Errors: a sentence of the system.
tl::expected<rtrs::OwnedFd, std::string> lock_files_beside(const std::string& path);

}  // namespace rnbd
