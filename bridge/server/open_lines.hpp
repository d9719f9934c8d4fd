// SPDX-License-Identifier: BSD-3-Clause
// A queue of OPENs for each disk, so that a hanging disk costs one thread and delays no other disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace rnbd {

/// Queues for work that may hang: a line for each file, and one for the state directory. One caller
/// of a line works at a time, or all together that came while others worked. While the work of one
/// hangs, the line accepts no more callers, so that neither threads nor waiters pile up. A line of
/// many that is only slow goes on: some work has ended since the late one came.
///
/// Threads: any.
class OpenLines {
 public:
  /// The most lines that hang at a time, each with a thread. Beyond that, no new line starts.
  static constexpr std::size_t kMostHung = 15;

  /// A caller in a line; only compared.
  using Who = const void*;
  /// The callers whose turn it is when others have ended. All callers of a line say the same.
  enum class Turn : std::uint8_t { one, all };

  /// Calls `start` when it is the caller's turn: here, or in another thread's end(). False: the
  /// line hangs, and `start` is never called.
  bool begin(const std::string& line, Who who, std::function<void()> start, Turn turn = Turn::one);
  /// The caller waits no longer. True: its work has not started, and it has left the line. False:
  /// the work runs. The line accepts no callers until some work has ended, unless it is only slow.
  bool give_up(const std::string& line, Who who);
  /// The caller's started work is over. Takes no memory.
  void end(const std::string& line, Who who);
  bool hangs(const std::string& line) const;
  /// The work of a caller runs that has given up.
  bool keeps_late(const std::string& line) const;

 private:
  struct Caller {
    Who who;
    std::uint64_t came;  ///< Line::ended then
    bool late = false;
  };
  struct Next {
    Caller caller;
    std::function<void()> start;
  };
  struct Line {
    Turn turn;
    std::vector<Caller> at_work;  ///< with room for all that wait
    bool hangs = false;
    std::uint64_t ended = 0;  ///< works
    std::list<Next> waiting{};
  };

  mutable std::mutex mutex_;
  std::map<std::string, Line> lines_;
  std::size_t hanging_ = 0;
};

}  // namespace rnbd
