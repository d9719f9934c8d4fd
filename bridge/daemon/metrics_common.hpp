// SPDX-License-Identifier: BSD-3-Clause
// Metrics that rnbd-server and rnbd-bridge have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/metrics_server.hpp"
#include "bridge/metrics/exposition.hpp"
#include "bridge/metrics/meter.hpp"

namespace rnbd {

using MeterReadings = std::vector<std::pair<std::string, MeterReading>>;

/// The most sessions with lines of their own. The others are added up under MeterBook::kOthers.
inline constexpr std::size_t kMostSessionsInMetrics = 256;

void add_build_info(Exposition& page);
/// NAME_ops_total, NAME_bytes_total, NAME_errors_total, NAME_latency_seconds and NAME_inflight,
/// with the label `name`: "export" or "device".
void add_operations(Exposition& page, const std::string& name, const MeterReadings& readings);

/// Adds when files with certificates or revocation lists end: their names, and seconds since 1970.
void add_ends(Exposition& page, const std::vector<std::pair<std::string, std::time_t>>& files);

/// The counters of a device for `rnbd-ctl top`.
Json counters_of(const std::string& device, const MeterReading& reading);

/// `metrics` and `counters` of a control socket.
///
/// Threads: those of the functions.
std::vector<ControlCommand> metrics_commands(std::function<std::string()> page,
                                             std::function<Json()> counters);

using MetricsServerPtr = std::unique_ptr<MetricsServer>;
/// Opens the server of metrics and logs its address, if one is given.
///
/// Errors: as MetricsServer::open().
tl::expected<void, std::string> open_metrics_server(const std::optional<MetricsAddress>& address,
                                                    MetricsServer::Page page,
                                                    MetricsServerPtr& server);
/// The same for an address that was checked before; "" = none.
tl::expected<void, std::string> open_metrics_server(const std::string& address,
                                                    MetricsServer::Page page,
                                                    MetricsServerPtr& server);

/// A steady clock for Services::clock. Units: nanoseconds.
std::uint64_t metrics_clock();

}  // namespace rnbd
