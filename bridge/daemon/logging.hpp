// The daemon's log: one line per event on standard error.
#pragma once

#include "rdma/log.hpp"

namespace rnbd {

/// Sets the log up. Under systemd each line carries its priority for the journal.
///
/// Threads: at start-up; what log_function() returns may be called from any thread.
void start_logging(rtrs::LogLevel level);

/// Writes to the log.
rtrs::Log log_function();

/// A line that is written whatever the level.
void announce(const std::string& line);

}  // namespace rnbd
