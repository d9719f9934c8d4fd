// SPDX-License-Identifier: BSD-3-Clause
// Messages between the daemon and its service manager.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace rnbd {

/// Sends e.g. "READY=1" to the service manager, if there is one.
/// Source: sd_notify(3).
void notify_manager(const std::string& state);

/// Whether the manager keeps descriptors while the program is started anew. Managers before systemd
/// 254 do not say so: then the unit has to, by Environment=FDSTORE=N.
/// Source: sd_notify(3), systemd.service(5).
bool manager_keeps_descriptors();
/// Gives the manager a descriptor to keep under a name, in front of which it gets kStoredPrefix.
/// False: it has not been sent.
bool store_descriptor(const std::string& name, int fd);
/// The manager keeps it no more.
void forget_descriptor(const std::string& name);
/// The descriptor that the manager has kept; -1 = none of that name. Before inherited_sockets().
int stored_descriptor(const std::string& name);

/// A socket on which a program can listen.
enum class Sockets { tcp, tcp_and_unix };

/// Sockets that the service manager listens on for us; none outside of socket activation.
///
/// Errors: a sentence when one of them is no listening socket of the kind.
/// Source: sd_listen_fds(3).
tl::expected<std::vector<int>, std::string> inherited_sockets(Sockets kind);

/// Writes one line to a descriptor and closes it.
///
/// Errors: a sentence.
std::string write_ready_line(int fd, const std::string& line);

}  // namespace rnbd
