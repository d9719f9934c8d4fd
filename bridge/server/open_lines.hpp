// SPDX-License-Identifier: BSD-3-Clause
// A queue of OPENs for each disk, so that a hanging disk costs one thread and delays no other disk.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace rnbd {

/// Queues for work that may hang: a line for each file, and one for the state directory. One caller
/// of a line works at a time. While its work hangs, the line accepts no more callers, so that
/// neither threads nor waiters pile up.
///
/// Threads: any.
class OpenLines {
 public:
  /// The most lines that hang at a time, each with a thread. Beyond that, no new line starts.
  static constexpr std::size_t kMostHung = 15;

  /// A caller in a line; only compared.
  using Who = const void*;

  /// Calls `start` when it is the caller's turn: here, or in another thread's end(). False: the
  /// line hangs, and `start` is never called.
  bool begin(const std::string& line, Who who, std::function<void()> start);
  /// The caller waits no longer. True: its work has not started, and it has left the line. False:
  /// the work runs, and the line accepts no callers until it has ended.
  bool give_up(const std::string& line, Who who);
  /// The started work is over.
  void end(const std::string& line);
  bool hangs(const std::string& line) const;

 private:
  struct Next {
    Who who;
    std::function<void()> start;
  };
  struct Line {
    Who first;
    bool hangs = false;
    std::deque<Next> waiting{};
  };

  mutable std::mutex mutex_;
  std::map<std::string, Line> lines_;
  std::size_t hanging_ = 0;
};

}  // namespace rnbd
