// SPDX-License-Identifier: BSD-3-Clause
// The first steps of every daemon.
#pragma once

#include <cstdint>
#include <string>

namespace rnbd {

/// Opens closed standard streams. Otherwise the first file would get the number of one, and the log
/// might be written into a client's disk.
bool open_standard_streams();

/// Raises the limit of descriptors for connections and files. The default soft limit of 1024 is
/// only for select(2).
void raise_descriptor_limit();
/// Makes free() return the memory of large buffers to the system, in every thread. Call it before
/// other threads start.
void keep_no_freed_memory();

/// Raises the limit of locked memory as far as allowed, and returns it in bytes. The largest number
/// means no limit.
std::uint64_t raise_memlock_limit();

/// Writes the file, which is removed at the end of the process. Returns "" or the mistake.
std::string write_pid_file(const std::string& path);

/// "" or the reason why the descriptor of --ready-fd cannot be written to; -1 = no descriptor.
std::string complaint_about_ready_fd(int fd);

}  // namespace rnbd
