#include "bridge/daemon/shutdown.hpp"

#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
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

timespec to_timespec(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
}

void watch() {
  const sigset_t signals = watched();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  bool drain = false;
  {
    const std::lock_guard lock{state().mutex};
    drain = state().serving;
    state().signal = number;
    state().changed.notify_all();
  }
  if (!drain) leave(0);
  const timespec limit = to_timespec(kLeaveWithin);
  number = sigtimedwait(&signals, nullptr, &limit);
  if (number > 0) leave(128 + number);
  log_function()(rtrs::LogLevel::warning, "something hangs and is abandoned; leaving");
  leave(0);
}

}  // namespace

void take_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  // A limit of file sizes (ulimit -f) is EFBIG for one request then, not the end of the server.
  ::signal(SIGXFSZ, SIG_IGN);
  const sigset_t signals = watched();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread{watch}.detach();
}

void signals_mean_drain() {
  const std::lock_guard lock{state().mutex};
  state().serving = true;
}

std::string wait_for_shutdown() {
  std::unique_lock lock{state().mutex};
  state().changed.wait(lock, [] { return state().signal != 0; });
  return state().signal == SIGINT ? "SIGINT" : "SIGTERM";
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

void leave(int status) {
  remove_files();
  finish_log();
  ::_exit(status);
}

}  // namespace rnbd
