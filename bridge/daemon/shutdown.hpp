// SPDX-License-Identifier: BSD-3-Clause
// SIGTERM and SIGINT: the first one asks the program to leave, and it does leave.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace rnbd {

/// From the first signal on the process ends within this time, even when something hangs.
inline constexpr std::chrono::milliseconds kLeaveWithin{4500};

/// Takes the signals over on a thread of its own. Call it before there is any other thread but the
/// log's; SIGPIPE, SIGXFSZ, SIGUSR1 and SIGUSR2 are ignored from then on, and SIGHUP is a line in
/// the log, unless on_hangup() says otherwise.
///
/// Until signals_mean_drain() is called a signal ends the process at once with status 0. After the
/// first signal a second one ends it at once (128 + its number), and so does the end of
/// kLeaveWithin (status 0).
void take_signals();

/// The action of SIGHUP in place of the line in the log; empty: that line again. It is called on
/// the thread of the signals, which must not wait.
void on_hangup(std::function<void()> work);

/// Call it before anybody is told that the program is ready.
void signals_mean_drain();

/// Blocks until the first signal; returns its name.
std::string wait_for_shutdown();

/// One more file to remove when the process ends in a hurry, or by remove_files().
void remove_at_exit(const std::string& file);
void remove_files();
/// Somebody else has removed it.
void removed(const std::string& file);

/// Ends the process now, without destructors, and hardly waits for the log.
[[noreturn]] void leave(int status);

}  // namespace rnbd
