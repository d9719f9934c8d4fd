// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/metrics.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>

#include "bridge/client/annex.hpp"
#include "bridge/daemon/metrics_common.hpp"
#include "rdma/path_list.hpp"
#include "rdma/transport/tls/inspect.hpp"

namespace rnbd {
namespace {

const char* name_of(rtrs::PathState state) {
  switch (state) {
    case rtrs::PathState::connecting:
      return "connecting";
    case rtrs::PathState::connected:
      return "connected";
    case rtrs::PathState::waiting:
      return "waiting";
    case rtrs::PathState::disconnected:
      break;
  }
  return "disconnected";
}

double in_seconds(rtrs::Duration time) { return std::chrono::duration<double>(time).count(); }

bool is_connected(const rtrs::PathStatus& path) { return path.state == rtrs::PathState::connected; }

void add_paths(Exposition& page, const SessionStatus& status) {
  const auto each = [&](const char* name, MetricType type, const char* help, auto value) {
    page.family(name, type, help);
    for (const rtrs::PathStatus& path : status.paths) {
      page.sample({{"path", to_string(path.address)}}, value(path));
    }
  };
  page.family("path_state", MetricType::gauge, "1 for the state that the path is in.");
  for (const rtrs::PathStatus& path : status.paths) {
    page.state({{"path", to_string(path.address)}}, name_of(path.state),
               {"connected", "connecting", "waiting", "disconnected"});
  }
  using Path = rtrs::PathStatus;
  each("path_in_use", MetricType::gauge, "1: it takes new requests.",
       [](const Path& path) { return std::uint64_t{path.in_use}; });
  each("path_requests_total", MetricType::counter, "Requests that were sent over the path.",
       [](const Path& path) { return path.requests; });
  each("path_inflight", MetricType::gauge, "Requests on the path that are not answered.",
       [](const Path& path) { return std::uint64_t{path.in_flight}; });
  each("path_silent", MetricType::gauge,
       "1: the path carries nothing, and another one does. It takes no new requests then.",
       [](const Path& path) { return std::uint64_t{path.silent > rtrs::Duration::zero()}; });
  each("path_silences_total", MetricType::counter,
       "How often the path has fallen silent while another one answered, in this session.",
       [](const Path& path) { return path.silences; });
  each("requests_moved_total", MetricType::counter,
       "Requests that have left the path for another one while it was silent.",
       [](const Path& path) { return path.left; });
  each("path_rtt_seconds", MetricType::gauge,
       "The time of the last heartbeat and its answer; 0 = not measured yet.",
       [](const Path& path) { return in_seconds(path.latency); });
  each("reconnects_total", MetricType::counter,
       "How often the path was connected again in this session.",
       [](const Path& path) { return path.connects > 0 ? path.connects - 1 : path.connects; });
  each("path_losses_total", MetricType::counter,
       "How often the path was lost, or taken out of service, in this session.",
       [](const Path& path) {
         return path.connects - (is_connected(path) && path.connects > 0 ? 1U : 0U);
       });
}

}  // namespace

LimitUses BridgeMetrics::limits() const {
  LimitUses limits = limits_of_process();
  if (max_connections_ > 0)
    limits.push_back({"max-connections", front_.usage().clients, max_connections_});
  return limits;
}

std::string BridgeMetrics::page() const {
  const SessionStatus status = connections_.status();
  const MeterReadings readings = front_.meters().read();
  const nbd::Front::Usage usage = front_.usage();
  Exposition page;
  add_build_info(page);
  add_operations(page, "device", readings);
  page.family("device_size_bytes", MetricType::gauge, "The size of an open device.");
  for (const DeviceStatus& device : status.devices) {
    if (device.trouble.empty()) page.sample({{"device", device.name}}, device.size);
  }
  page.family("session_up", MetricType::gauge, "1: there is a session with the server.");
  page.sample({}, std::uint64_t{!status.name.empty()});
  add_paths(page, status);
  const bool has_path = std::ranges::any_of(status.paths, &rtrs::PathStatus::in_use);
  std::uint64_t waiting = 0;
  for (const auto& [device, reading] : readings) waiting += has_path ? 0 : reading.in_flight;
  page.family("requests_waiting_for_path", MetricType::gauge,
              "Requests that are under way while no path takes any.");
  page.sample({}, waiting);
  page.family("no_path_seconds_total", MetricType::counter,
              "How long altogether no path could carry requests, in this session.");
  page.sample({}, in_seconds(status.without_path));
  if (DiskSource* const source = connections_.source()) source->add_metrics(page);
  add_limits(page, limits());
  page.family("nbd_clients", MetricType::gauge, "NBD clients that are served.");
  page.sample({}, std::uint64_t{usage.clients});
  page.family("nbd_budget_bytes", MetricType::gauge,
              "Memory of requests beyond what each client may have at any time.");
  page.sample({}, std::uint64_t{usage.memory});
  page.family("digest_errors_total", MetricType::counter,
              "Frames over TCP that arrived damaged: their CRC32C does not match.");
  page.sample({}, rtrs::digest_errors());
  std::vector<std::pair<std::string, std::time_t>> ends;
  for (const std::string& directory : {certificates_, config_.tls_keys.certificates}) {
    std::ranges::copy(rtrs::tls::ends_in(directory), std::back_inserter(ends));
  }
  add_ends(page, ends);
  return page.take();
}

Json BridgeMetrics::counters() const {
  const SessionStatus status = connections_.status();
  Json counters{{"program", "rnbd-bridge"}, {"devices", Json::array()}, {"paths", Json::array()}};
  for (const auto& [name, reading] : front_.meters().read()) {
    counters["devices"].push_back(counters_of(name, reading));
  }
  for (const rtrs::PathStatus& path : status.paths) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(path.latency).count();
    counters["paths"].push_back({{"path", to_string(path.address)},
                                 {"session", status.name},
                                 {"state", name_of(path.state)},
                                 {"requests", path.requests},
                                 {"in_flight", path.in_flight},
                                 {"latency_us", us > 0 ? Json(us) : Json()}});
  }
  return counters;
}

std::vector<ControlCommand> BridgeMetrics::with_limits(std::vector<ControlCommand> commands) const {
  const auto status = std::ranges::find(commands, "status", &ControlCommand::name);
  status->run = [this, of_client = status->run](const std::string& argument) {
    auto answer = of_client(argument);
    if (answer) (*answer)["limits"] = status_of_limits(limits());
    return answer;
  };
  return commands;
}

std::vector<ControlCommand> BridgeMetrics::commands() const {
  return metrics_commands([this] { return page(); }, [this] { return counters(); });
}

}  // namespace rnbd
