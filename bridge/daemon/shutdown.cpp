// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/shutdown.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/daemon/logging.hpp"

namespace rnbd {
namespace {

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  bool serving = false;
  int signal = 0;
  std::vector<std::string> files;
  std::function<void()> hangup;
  std::function<void()> user_signal;
};

/// Never destroyed: the signal thread uses it until the very end.
State& state() {
  static auto* const instance = new State;
  return *instance;
}

sigset_t watched() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

/// Unless the parent (nohup) ignores the signal.
bool hangup_matters() {
  struct sigaction now {};
  return ::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler != SIG_IGN;
}

/// The first signal that asks the program to leave. A hang-up does not: log rotation sends it, and
/// so do users who expect that the configuration is read again.
int first_of(const sigset_t& signals) {
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (number != SIGHUP && number != SIGUSR2) return number;
    const std::lock_guard lock{state().mutex};
    if (number == SIGUSR2) {
      if (state().user_signal) state().user_signal();
      continue;
    }
    if (state().hangup) {
      state().hangup();
      continue;
    }
    log_function()(rtrs::LogLevel::info,
                   "SIGHUP: going on; what was configured is read at the start only, so restart "
                   "this program to have it read again");
  }
}

timespec to_timespec(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
}

/// The next of the signals, or -1 after `patience`. Neither a stop of the process (SIGSTOP) nor a
/// debugger's look shortens that.
int wait_for(const sigset_t& signals, std::chrono::nanoseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto rest = until - std::chrono::steady_clock::now();
    const timespec limit = to_timespec(std::max<std::chrono::nanoseconds>(rest, {}));
    const int number = sigtimedwait(&signals, nullptr, &limit);
    if (number > 0 || errno != EINTR) return number;
  }
}

void watch(const sigset_t& first) {
  int number = first_of(first);
  bool drain = false;
  {
    const std::lock_guard lock{state().mutex};
    drain = state().serving;
    state().signal = number;
    state().changed.notify_all();
  }
  if (!drain) leave(0);
  number = wait_for(watched(), kLeaveWithin);
  if (number > 0) leave(128 + number);
  log_function()(rtrs::LogLevel::warning, "something hangs and is abandoned; leaving");
  leave(0);
}

}  // namespace

void take_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  // A limit of file sizes (ulimit -f) is EFBIG for one request then, not the end of the server.
  ::signal(SIGXFSZ, SIG_IGN);
  // Other programs' sign to open their logs anew.
  ::signal(SIGUSR1, SIG_IGN);
  ::signal(SIGUSR2, SIG_DFL);  // what is ignored is not waited for
  sigset_t signals = watched();
  sigaddset(&signals, SIGUSR2);
  if (hangup_matters()) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread{watch, signals}.detach();
}

void on_hangup(std::function<void()> work) {
  const std::lock_guard lock{state().mutex};
  state().hangup = std::move(work);
}

void on_user_signal(std::function<void()> work) {
  const std::lock_guard lock{state().mutex};
  state().user_signal = std::move(work);
}

void signals_mean_drain() {
  std::unique_lock lock{state().mutex};
  state().serving = true;
  state().changed.wait(lock, [] { return state().signal == 0; });  // else for ever
}

std::string wait_for_shutdown() {
  std::unique_lock lock{state().mutex};
  state().changed.wait(lock, [] { return state().signal != 0; });
  return std::string{"SIG"} + sigabbrev_np(state().signal);
}

bool shutdown_begun() {
  const std::lock_guard lock{state().mutex};
  return state().signal != 0;
}

void remove_at_exit(const std::string& file) {
  const std::lock_guard lock{state().mutex};
  state().files.push_back(file);
}

void removed(const std::string& file) {
  const std::lock_guard lock{state().mutex};
  std::erase(state().files, file);
}

void remove_files() {
  const std::lock_guard lock{state().mutex};
  for (const std::string& file : state().files) ::unlink(file.c_str());
}

void keep_files() {
  const std::lock_guard lock{state().mutex};
  state().files.clear();
}

void leave(int status) {
  remove_files();
  finish_log();
  ::_exit(status);
}

}  // namespace rnbd
