// SPDX-License-Identifier: BSD-3-Clause
// Logs exports whose file is replaced, deleted or moved away while clients use it. Their requests
// go on without an error, so only the log and `rnbd-ctl check` can tell.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bridge/server/catalogue.hpp"
#include "rdma/log.hpp"

namespace rnbd {

/// Finds the news in what an export's status says of its path.
///
/// Threads: one at a time.
class Displacements {
 public:
  struct Line {
    rtrs::LogLevel level;
    std::string text;
    const char* event;
    std::string name;
  };

  std::vector<Line> look(const std::vector<ExportStatus>& exports);
  /// By the export's name: why it is displaced.
  const std::map<std::string, std::string>& told() const { return told_; }

 private:
  std::map<std::string, std::string> told_;  ///< by the export's name: why it is displaced
};

/// Looks at the paths of all exports. If a path hangs with its mount, no others are looked at until
/// it answers; deleted files are still told by `rnbd-ctl check`.
///
/// Threads: one.
class PathWatch {
 public:
  /// Runs work that may block, and ends before `catalogue` does.
  using Offload = std::function<void(std::function<void()> work)>;

  PathWatch(ExportCatalogue& catalogue, Offload offload, rtrs::Log log);
  /// Starts a look, unless one is under way. Never blocks.
  void look_soon();

 private:
  struct Look;
  std::shared_ptr<Look> look_;
  Offload offload_;
};

}  // namespace rnbd
