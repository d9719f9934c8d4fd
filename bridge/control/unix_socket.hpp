// SPDX-License-Identifier: BSD-3-Clause
// Unix sockets on which a program listens.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rnbd {

/// "" or why a Unix socket cannot have this path.
std::string complaint_about_socket_path(const std::string& path);

/// The path for a program that is going to have another working directory.
std::string absolute_path(std::string_view path);

/// The same for a socket.
///
/// Errors: complaint_about_socket_path().
tl::expected<std::string, std::string> absolute_socket_path(std::string_view path);

/// Makes a Unix socket and listens on it; its permissions are `mode` without what the umask takes,
/// from the first moment on. A socket on which nobody listens any more is replaced.
///
/// Errors: a sentence that says what to do; the caller names the path.
tl::expected<int, std::string> listen_on_unix_socket(const std::string& path, mode_t mode);

}  // namespace rnbd
