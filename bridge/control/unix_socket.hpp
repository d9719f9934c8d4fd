// SPDX-License-Identifier: BSD-3-Clause
// Unix sockets on which a program listens.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rnbd {

/// "" or the reason why a Unix socket cannot have this path.
std::string complaint_about_socket_path(const std::string& path);

/// "" or the reason why no waiting makes a socket of what is at this path.
std::string complaint_about_socket_place(const std::string& path);

/// Makes a socket's path absolute, for a program that will change its working directory.
///
/// Errors: complaint_about_socket_path().
tl::expected<std::string, std::string> absolute_socket_path(std::string_view path);

/// Makes a Unix socket and listens on it. From the first moment its permissions are `mode` without
/// the bits of the umask. Replaces a stale socket, on which no program listens any more.
///
/// Errors: a sentence with the remedy; the caller adds the path.
tl::expected<int, std::string> listen_on_unix_socket(const std::string& path, mode_t mode);

}  // namespace rnbd
