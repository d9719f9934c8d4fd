// SPDX-License-Identifier: BSD-3-Clause
// The program that takes the place of this one while its clients go on.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/bridge/estate.hpp"
#include "bridge/daemon/bridge/predecessor.hpp"
#include "bridge/daemon/bridge/succession.hpp"
#include "rdma/failure.hpp"
#include "rdma/mailbox.hpp"

namespace rnbd {

/// The way to start this program anew: as the file that is at its path by then.
struct Program {
  std::string path;
  std::vector<std::string> arguments;  ///< the first is its name
  /// Call it before anything changes the directory, or the program's file.
  static Program of(int argc, const char* const* argv);
};

/// The parts of a program that are replaced. All are called on the thread of Heirs, one at a time.
struct HeirSteps {
  using Time = std::chrono::steady_clock::time_point;

  std::function<std::string()> why_not;    ///< "" or what keeps it from being replaced at all
  std::function<bool(Time)> let_meet;      ///< lets clients end their handshakes; true: all have
  std::function<std::string(Time)> pause;  ///< "", or why clients are not still
  /// Of clients that are still. "", or why their disks are not closed.
  std::function<std::string(Time, Estate&)> let_go;
  std::function<void()> resume;           ///< pause() without let_go()
  std::function<void(Estate)> take_back;  ///< what was let go
  std::function<void(pid_t)> leave;       ///< to the heir; does not return
};

/// Replaces the program when it is asked to.
///
/// Threads: one of its own while that is under way; the functions any.
class Heirs {
 public:
  Heirs(Program program, HeirSteps steps);
  ~Heirs() { stop(); }
  Heirs(const Heirs&) = delete;
  Heirs& operator=(const Heirs&) = delete;

  /// Begins. Errors: EBUSY (one is under way), EAGAIN (no thread), EOPNOTSUPP with what keeps it
  /// from being done.
  tl::expected<void, rtrs::Failure> ask();
  /// Ends what is under way; the program goes on itself. No other begins.
  void stop();

  struct Status {
    Stage stage = Stage::serving;
    std::string trouble;  ///< why the last one was not done
  };
  Status status() const;

 private:
  class Child;

  void run();
  void let_meet();
  bool stopped() const;
  std::string replace(Child& child, Estate& estate);
  Step take(Turn turn);

  const Program program_;
  const HeirSteps steps_;
  rtrs::WakeUp over_;  ///< stop() was called
  mutable std::mutex mutex_;
  Stage stage_ = Stage::serving;  ///< guarded by mutex_, as the next four
  std::string trouble_;
  bool stopped_ = false;
  bool running_ = false;  ///< the thread
  std::thread thread_;
};

}  // namespace rnbd
