// SPDX-License-Identifier: BSD-3-Clause
// The daemon's log: one line per event on standard error. A separate thread writes them, so that
// callers never wait for the reader of the log.
#pragma once

#include <chrono>

#include "rdma/log.hpp"

namespace rnbd {

/// Sets up the log, and starts its thread, which takes no signals. Under systemd each line carries
/// its priority for the journal. Lines with facts (rtrs::LogAbout) go to the journal's own socket,
/// with a field for each fact. Elsewhere lines have local time and the program's name. If standard
/// error blocks, 1024 lines wait. Beyond that the oldest are dropped, and the log reports their
/// number when it goes on.
///
/// Errors:  std::system_error when the system grants no thread.
/// Threads: at start-up; log_function()'s result may be called from any thread, and never
/// waits.
void start_logging(rtrs::LogLevel level);

/// Writes to the log.
rtrs::Log log_function();

/// Writes the answer to a question, at any log level. The line is written before this returns,
/// unless standard error blocks.
void announce(const std::string& line);

/// Waits until all lines are written, at most for the limit. Call it before the process ends.
void finish_log(std::chrono::milliseconds limit = std::chrono::milliseconds{300});

}  // namespace rnbd
