// SPDX-License-Identifier: BSD-3-Clause
// The metrics of rnbd-bridge.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/control/commands.hpp"
#include "bridge/daemon/limits.hpp"
#include "bridge/nbd/front.hpp"

namespace rnbd {

/// Reads the counters of these objects, which must outlive it.
///
/// Threads: any, while the front serves.
class BridgeMetrics {
 public:
  /// `certificates`: the directory of those toward NBD clients; "" = none. `max_connections`: of
  /// NBD clients; 0 = it does not listen for any.
  BridgeMetrics(const ClientConfig& config, Connections& connections, const nbd::Front& front,
                std::string certificates, unsigned max_connections)
      : config_{config},
        connections_{connections},
        front_{front},
        certificates_{std::move(certificates)},
        max_connections_{max_connections} {}

  LimitUses limits() const;
  /// The page of docs/metrics.md.
  std::string page() const;
  /// For `rnbd-ctl top`.
  Json counters() const;
  /// `metrics` and `counters`; this must outlive them.
  std::vector<ControlCommand> commands() const;
  /// The client's command `status`, with the limits added; this must outlive them.
  std::vector<ControlCommand> with_limits(std::vector<ControlCommand> commands) const;

 private:
  const ClientConfig& config_;
  Connections& connections_;
  const nbd::Front& front_;
  std::string certificates_;
  unsigned max_connections_;
};

}  // namespace rnbd
