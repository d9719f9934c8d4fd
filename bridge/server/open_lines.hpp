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

/// Lets one caller at a time into work that may hang, per line: a file, or the state directory. A
/// line with a hanging first caller takes no more, so that neither threads nor waiters pile up.
///
/// Threads: any.
class OpenLines {
 public:
  /// Lines that may hang at a time; each has a thread. Then no new line is begun either.
  static constexpr std::size_t kMostHung = 15;

  /// A caller in a line; only compared.
  using Who = const void*;

  /// Calls `start` when it is the turn of `who`: in here, or in another thread's end(). False: the
  /// line hangs, and `start` is not called.
  bool begin(const std::string& line, Who who, std::function<void()> start);
  /// The caller waits no longer: the line takes no more until the work that it has started is over.
  /// True: it has not started any, and is out of the line.
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
