// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/path_watch.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/attempt.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {

std::vector<Displacements::Line> Displacements::look(const std::vector<ExportStatus>& exports) {
  // An export and a deleted file of the search path may have the same name.
  std::map<std::string, const ExportStatus*> by_name;
  for (const ExportStatus& status : exports) {
    const auto [known, is_new] = by_name.try_emplace(status.name, &status);
    if (!is_new && known->second->displaced.empty()) known->second = &status;
  }
  std::vector<Line> lines;
  std::map<std::string, std::string> now;
  for (const auto& [unused, each] : by_name) {
    const ExportStatus& status = *each;
    if (!status.displaced.empty()) now[status.name] = status.displaced;
    const auto before = told_.find(status.name);
    const std::string known = before != told_.end() ? before->second : "";
    if (status.displaced == known) continue;
    const std::string name = "export " + in_quotes(status.name) + ": ";
    if (status.displaced.empty()) {
      lines.push_back({rtrs::LogLevel::info,
                       name + "no client uses storage any more that is not at its path",
                       "export_in_place", status.name});
    } else {
      lines.push_back({status.read_only ? rtrs::LogLevel::warning : rtrs::LogLevel::error,
                       name + status.displaced, "export_displaced", status.name});
    }
  }
  told_ = std::move(now);
  return lines;
}

struct PathWatch::Look {
  ExportCatalogue& catalogue;
  rtrs::Log log;
  Displacements displacements{};
  std::atomic<bool> runs{false};

  void run() {
    std::vector<ExportStatus> all = catalogue.look_at_paths();
    for (const auto& [name, why] : displacements.told()) {
      if (catalogue.has(name))
        all.emplace_back().name = name;  // in order, if it is not there twice
    }
    std::ranges::move(catalogue.displaced_files(), std::back_inserter(all));
    for (const Displacements::Line& line : displacements.look(all)) {
      const rtrs::LogAbout about{{.event = line.event, .device = line.name}};
      log(line.level, line.text);
    }
  }
};

PathWatch::PathWatch(ExportCatalogue& catalogue, Offload offload, rtrs::Log log)
    : look_{new Look{catalogue, std::move(log)}}, offload_{std::move(offload)} {}

void PathWatch::look_soon() {
  if (look_->runs.exchange(true)) return;
  offload_([look = look_] {
    attempt([&] { look->run(); });  // what it lacks now it may have next time
    look->runs = false;
  });
}

}  // namespace rnbd
