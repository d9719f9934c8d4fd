// SPDX-License-Identifier: BSD-3-Clause
// The daemon's log: one line per event on standard error. A thread of its own writes them, so that
// a caller never waits for the reader of the log.
#pragma once

#include <chrono>

#include "rdma/log.hpp"

namespace rnbd {

/// Sets the log up, and starts its thread, which takes no signals. Under systemd each line carries
/// its priority for the journal, and those with facts (rtrs::LogAbout) go to the journal's own
/// socket with a field for each; elsewhere lines have local time and the program's name. When
/// standard error takes no lines, 1024 of them wait; then the oldest are dropped, and the log says
/// how many once it goes on.
///
/// Errors:  std::system_error when the system grants no thread.
/// Threads: at start-up; log_function()'s result may be called from any thread, and never
/// waits.
void start_logging(rtrs::LogLevel level);

/// Writes to the log.
rtrs::Log log_function();

/// The answer to a question: a line that is written at any level, before this returns if
/// standard error takes it.
void announce(const std::string& line);

/// Waits until all that was logged is written, but not for longer than the limit. Call it before
/// the process ends.
void finish_log(std::chrono::milliseconds limit = std::chrono::milliseconds{300});

}  // namespace rnbd
