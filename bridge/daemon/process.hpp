// SPDX-License-Identifier: BSD-3-Clause
// Every daemon's first steps.
#pragma once

#include <cstdint>
#include <string>

namespace rnbd {

/// A standard stream that is closed would give its number to the first file that is opened, and the
/// log would go into somebody's disk.
bool open_standard_streams();

/// Connections and files are descriptors; the default soft limit of 1024 is for select(2).
void raise_descriptor_limit();
/// Memory of large buffers goes back to the system when it is freed, whichever thread frees it.
/// Before any other thread.
void keep_no_freed_memory();

/// Bytes of memory that this process may lock, once its own limit is as high as it may be. The
/// largest number: there is no limit.
std::uint64_t raise_memlock_limit();

/// The file is removed at the end of the process. Returns "" or the mistake.
std::string write_pid_file(const std::string& path);

/// "" or why nothing can be written to the descriptor of --ready-fd; -1 = there is none.
std::string complaint_about_ready_fd(int fd);

}  // namespace rnbd
