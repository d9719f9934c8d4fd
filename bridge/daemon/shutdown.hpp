// SPDX-License-Identifier: BSD-3-Clause
// SIGTERM and SIGINT: the first one ends the program in order, and within a time limit.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace rnbd {

/// The process ends within this time after the first signal, even if something hangs.
inline constexpr std::chrono::milliseconds kLeaveWithin{4500};

/// Starts a thread that handles signals. Call it before all other threads except the log's. From
/// then on SIGPIPE, SIGXFSZ and SIGUSR1 are ignored, and so is SIGUSR2, unless on_user_signal()
/// sets an action. SIGHUP only causes a line in the log, unless on_hangup() sets one.
///
/// Before signals_mean_drain() a signal ends the process at once, with status 0. Later the first
/// signal begins the end, and a second one ends the process at once (128 + its number). So does the
/// end of kLeaveWithin (status 0).
void take_signals();

/// Sets the action of SIGHUP, in place of the line in the log; empty: the line again. It is called
/// on the thread of the signals, and must not wait.
void on_hangup(std::function<void()> work);

/// Sets the action of SIGUSR2, which has none else, as on_hangup() does.
void on_user_signal(std::function<void()> work);

/// Call it before the program reports that it is ready. Does not return if a signal is ending the
/// process already.
void signals_mean_drain();

/// Blocks until the first signal; returns its name.
std::string wait_for_shutdown();

/// True after the first signal.
bool shutdown_begun();

/// Adds a file that is removed when the process ends in a hurry, or by remove_files().
void remove_at_exit(const std::string& file);
void remove_files();
/// All of them belong to another process from now on.
void keep_files();
/// The file is removed already.
void removed(const std::string& file);

/// Ends the process now, without destructors and with only a short wait for the log.
[[noreturn]] void leave(int status);

}  // namespace rnbd
