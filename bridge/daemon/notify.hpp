// SPDX-License-Identifier: BSD-3-Clause
// Messages between the daemon and its service manager.
#pragma once

#include <cstddef>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace rnbd {

/// Sends e.g. "READY=1" to the service manager, if there is one.
/// Source: sd_notify(3).
void notify_manager(const std::string& state);

/// True if the manager keeps descriptors during a restart of the program. Before systemd 254 the
/// manager does not report it, so the unit must, by Environment=FDSTORE=N.
/// Source: sd_notify(3), systemd.service(5).
bool manager_keeps_descriptors();
/// How many it keeps; 0: none.
std::size_t most_kept_descriptors();
/// Gives the manager a descriptor to keep, under kStoredPrefix and a name. False: it was not sent.
bool store_descriptor(const std::string& name, int fd);
/// Makes the manager drop the descriptor of this name.
void forget_descriptor(const std::string& name);
struct StoredDescriptor {
  std::string name;  ///< as for store_descriptor()
  int fd = -1;
};
/// The descriptors that the manager has kept. Call it before inherited_sockets().
std::vector<StoredDescriptor> stored_descriptors();

/// True if a program can listen on this socket.
enum class Sockets { tcp, tcp_and_unix };

/// The listening sockets from the service manager; none without socket activation.
///
/// Errors: a sentence if one of them is no listening socket of this kind.
/// Source: sd_listen_fds(3).
tl::expected<std::vector<int>, std::string> inherited_sockets(Sockets kind);

/// Writes one line to a descriptor and closes it.
///
/// Errors: a sentence.
std::string write_ready_line(int fd, const std::string& line);

}  // namespace rnbd
