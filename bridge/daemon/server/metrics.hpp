// SPDX-License-Identifier: BSD-3-Clause
// The metrics of rnbd-server.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/limits.hpp"
#include "bridge/daemon/server/settings.hpp"
#include "bridge/metrics/meter.hpp"
#include "bridge/server/catalogue.hpp"
#include "rdma/server.hpp"

namespace rnbd {

/// Reads the counters of these objects, which must outlive it.
///
/// Threads: any, while the server runs.
class ServerMetrics {
 public:
  /// `settings` must outlive it, too.
  ServerMetrics(rtrs::Server& server, const ExportCatalogue& catalogue, const MeterBook& meters,
                const Settings& settings)
      : server_{server}, catalogue_{catalogue}, meters_{meters}, settings_{settings} {}

  /// The page of docs/metrics.md. Waits for the event loops.
  std::string page() const;
  /// For `rnbd-ctl top`. Waits likewise.
  Json counters() const;
  /// How much of each limit is used. Waits likewise.
  LimitUses limits() const;
  /// `metrics` and `counters`; this must outlive them.
  std::vector<ControlCommand> commands() const;

 private:
  rtrs::Server& server_;
  const ExportCatalogue& catalogue_;
  const MeterBook& meters_;
  const Settings& settings_;
};

}  // namespace rnbd
