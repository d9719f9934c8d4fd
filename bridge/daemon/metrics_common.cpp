// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/metrics_common.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "bridge/daemon/logging.hpp"

namespace rnbd {
namespace {

constexpr auto kRead = MeteredOperation::read, kWrite = MeteredOperation::write,
               kFlush = MeteredOperation::flush;

template <class Function>
void for_each_operation(Function function) {
  for (std::size_t i = 0; i < kMeteredOperations; ++i) function(static_cast<MeteredOperation>(i));
}

bool has_bytes(MeteredOperation operation) {
  return operation != kFlush && operation != MeteredOperation::other;
}

/// Those that are always shown, so that a first increase is seen as one.
bool is_usual(MeteredOperation operation) { return operation == kRead || operation == kWrite; }

}  // namespace

void add_build_info(Exposition& page) {
  page.family("build_info", MetricType::gauge, "Always 1; the version of the program.");
  page.sample({{"version", RNBDKIT_VERSION}}, std::uint64_t{1});
}

void add_operations(Exposition& page, const std::string& name, const MeterReadings& readings) {
  page.family(name + "_ops_total", MetricType::counter, "Operations that have ended.");
  for (const auto& [label, reading] : readings) {
    for_each_operation([&, &label = label, &reading = reading](MeteredOperation operation) {
      page.sample({{name, label}, {"op", to_string(operation)}}, reading.of(operation).ended);
    });
  }
  page.family(name + "_bytes_total", MetricType::counter,
              "Bytes that successful operations were about.");
  for (const auto& [label, reading] : readings) {
    for_each_operation([&, &label = label, &reading = reading](MeteredOperation operation) {
      if (!has_bytes(operation)) return;
      page.sample({{name, label}, {"op", to_string(operation)}}, reading.of(operation).bytes);
    });
  }
  page.family(name + "_errors_total", MetricType::counter, "Operations that have failed.");
  for (const auto& [label, reading] : readings) {
    for (std::size_t place = 0; place < kMeteredErrors; ++place) {
      const bool shown = reading.errors[place] != 0 || place == place_of_metered_error(EIO);
      if (!shown) continue;
      page.sample({{name, label}, {"errno", name_of_metered_error(place)}}, reading.errors[place]);
    }
  }
  page.family(name + "_latency_seconds", MetricType::histogram,
              "How long operations took: the first of each kind, and every " +
                  std::to_string(Meter::kTimedOneIn) + "th.");
  for (const auto& [label, reading] : readings) {
    for_each_operation([&, &label = label, &reading = reading](MeteredOperation operation) {
      if (reading.of(operation).timed == 0 && !is_usual(operation)) return;
      page.histogram({{name, label}, {"op", to_string(operation)}}, reading.of(operation));
    });
  }
  page.family(name + "_inflight", MetricType::gauge, "Operations that are under way.");
  for (const auto& [label, reading] : readings) {
    page.sample({{name, label}}, reading.in_flight);
  }
}

void add_ends(Exposition& page, const std::vector<std::pair<std::string, std::time_t>>& files) {
  page.family("certificate_end_timestamp_seconds", MetricType::gauge,
              "When the first certificate or revocation list of the file ends, since 1970.");
  for (const auto& [file, end] : files)
    page.sample({{"file", file}}, static_cast<std::uint64_t>(end));
}

Json counters_of(const std::string& device, const MeterReading& reading) {
  std::uint64_t others = 0, errors = 0;
  for_each_operation([&](MeteredOperation operation) {
    if (!is_usual(operation)) others += reading.of(operation).ended;
  });
  for (const std::uint64_t count : reading.errors) errors += count;
  Json counters{{"device", device}};
  for (const MeteredOperation operation : {kRead, kWrite}) {
    const MeterReading::Operations& of = reading.of(operation);
    const std::string name = to_string(operation);
    counters[name + "_ops"] = of.ended;
    counters[name + "_bytes"] = of.bytes;
    counters[name + "_timed"] = of.timed;
    counters[name + "_timed_ns"] = of.nanoseconds;
  }
  counters["other_ops"] = others;
  counters["errors"] = errors;
  counters["in_flight"] = reading.in_flight;
  return counters;
}

std::vector<ControlCommand> metrics_commands(std::function<std::string()> page,
                                             std::function<Json()> counters) {
  using Answer = tl::expected<Json, rtrs::Failure>;
  return {{"metrics", "", "The metrics in the text format of Prometheus.",
           [page = std::move(page)](const std::string&) -> Answer {
             return Json{{"text", page()}};
           },
           /*for_readers=*/true},
          {"counters", "", "What devices and paths have done so far, as rnbd-ctl top reads it.",
           [counters = std::move(counters)](const std::string&) -> Answer { return counters(); },
           /*for_readers=*/true}};
}

tl::expected<void, std::string> open_metrics_server(const std::optional<MetricsAddress>& address,
                                                    MetricsServer::Page page,
                                                    MetricsServerPtr& server) {
  if (!address) return {};
  auto opened = MetricsServer::open(*address, std::move(page));
  if (!opened) return tl::unexpected(opened.error());
  server = *std::move(opened);
  log_function()(rtrs::LogLevel::info, "metrics at http://" + server->address() + "/metrics");
  return {};
}

tl::expected<void, std::string> open_metrics_server(const std::string& address,
                                                    MetricsServer::Page page,
                                                    MetricsServerPtr& server) {
  if (address.empty()) return {};
  return open_metrics_server(std::optional{*parse_metrics_address(address)}, std::move(page),
                             server);
}

std::uint64_t metrics_clock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds{now}.count()) | 1U;
}

}  // namespace rnbd
