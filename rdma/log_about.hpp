// SPDX-License-Identifier: BSD-3-Clause
// The subject of a line of the log, for logs that programs search.
#pragma once

#include <string_view>

namespace rtrs {

/// Facts beside a line's sentence. Those that are empty, or 0, are not known.
struct LogFacts {
  std::string_view event = {};    ///< a word that stays when the sentence changes
  std::string_view session = {};  ///< its name
  std::string_view path = {};     ///< at a client the path's address, at a server the client's
  std::string_view device = {};   ///< the name of the export
  int error = 0;                  ///< errno
};

/// Tells the log what the lines of this thread are about, as long as it lives: all that stands
/// between those who know and the log passes sentences only. The names must live as long.
///
/// Threads: each has its own.
class LogAbout {
 public:
  explicit LogAbout(const LogFacts& facts) : facts_{facts}, before_{now_} { now_ = &facts_; }
  ~LogAbout() { now_ = before_; }
  LogAbout(const LogAbout&) = delete;
  LogAbout& operator=(const LogAbout&) = delete;

  /// Null: nobody told.
  static const LogFacts* now() { return now_; }

 private:
  static inline thread_local const LogFacts* now_ = nullptr;

  LogFacts facts_;
  const LogFacts* before_;
};

}  // namespace rtrs
