// SPDX-License-Identifier: BSD-3-Clause
// Who waits for which disk, so that one that hangs costs one thread and nobody else's time.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace rnbd {

/// Lets one at a time into what may hang, per line: a file, or the state directory. A line whose
/// first one hangs takes nobody in, so that neither threads nor those who wait pile up.
///
/// Threads: any.
class OpenLines {
 public:
  /// Lines that may hang at a time; each has a thread. Then no new line is begun either.
  static constexpr std::size_t kMostHung = 15;

  /// Whoever stands in a line; only compared.
  using Who = const void*;

  /// Calls `start` when it is the turn of `who`, which may be in here or in another thread's end().
  /// False: the line hangs, and `start` is not called.
  bool begin(const std::string& line, Who who, std::function<void()> start);
  /// It takes `who` too long: the line takes nobody in until what he has started is over. True: he
  /// has not started anything, and is out of the line.
  bool give_up(const std::string& line, Who who);
  /// What was started is over.
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
