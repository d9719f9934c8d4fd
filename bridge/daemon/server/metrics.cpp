// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "bridge/daemon/metrics_common.hpp"
#include "rdma/client.hpp"
#include "rdma/transport/tls/inspect.hpp"

namespace rnbd {
namespace {

using Sessions = std::vector<rtrs::ServerSessionStatus>;

/// From then on its storage hangs, as the log says, too.
constexpr std::chrono::seconds kHungAfter{10};

double in_seconds(rtrs::Duration time) { return std::chrono::duration<double>(time).count(); }

/// An export as its users see it.
struct ExportUse {
  rtrs::Duration oldest{};
  std::map<std::string, std::uint64_t> openers;  ///< by access mode
};

std::map<std::string, ExportUse> use_of_exports(const Sessions& sessions) {
  std::map<std::string, ExportUse> all;
  for (const auto& session : sessions) {
    for (const auto& item : session.items) {
      ExportUse& use = all[item.name];
      use.oldest = std::max(use.oldest, item.oldest);
      ++use.openers[item.how];
    }
  }
  return all;
}

/// By the limits of the export, not by those of a session.
void add_throttled(Exposition& page, const std::vector<ExportStatus>& exports) {
  page.family("export_throttled", MetricType::gauge,
              "Requests that the export's limits hold back.");
  for (const ExportStatus& each : exports)
    page.sample({{"export", each.name}}, each.throttled.waiting);
  page.family("export_throttled_total", MetricType::counter,
              "Requests that have waited because of the export's limits.");
  for (const ExportStatus& each : exports)
    page.sample({{"export", each.name}}, each.throttled.waited);
  page.family("export_throttled_seconds_total", MetricType::counter,
              "For how long these have waited together.");
  for (const ExportStatus& each : exports) {
    page.sample({{"export", each.name}},
                in_seconds(std::chrono::nanoseconds{each.throttled.nanoseconds}));
  }
}

void add_space(Exposition& page, const std::vector<ExportStatus>& exports) {
  const auto each = [&](const char* name, const char* help, auto part) {
    page.family(name, MetricType::gauge, help);
    for (const ExportStatus& status : exports)
      if (status.space) page.sample({{"export", status.name}}, (*status.space).*part);
  };
  each("export_unallocated_bytes", "What writes may still take of the file's file system.",
       &StorageSpace::unallocated);
  each("export_filesystem_free_bytes", "What is free of that file system, for others than root.",
       &StorageSpace::free);
  each("export_filesystem_bytes", "The size of that file system.", &StorageSpace::whole);
}

void add_exports(Exposition& page, const ExportCatalogue& catalogue, const Sessions& sessions) {
  auto uses = use_of_exports(sessions);
  const std::vector<ExportStatus> exports = catalogue.exports();
  for (const ExportStatus& each : exports) uses.try_emplace(each.name);
  page.family("export_oldest_request_seconds", MetricType::gauge,
              "For how long the oldest request that is under way has been at the storage, seen "
              "every few seconds.");
  for (const auto& [name, use] : uses) page.sample({{"export", name}}, in_seconds(use.oldest));
  page.family("export_openers", MetricType::gauge, "Sessions that have it open.");
  for (const auto& [name, use] : uses) {
    for (const char* access : {"ro", "rw", "migration", "unclaimed"}) {
      const auto count = use.openers.find(access);
      page.sample({{"export", name}, {"access", access}},
                  count != use.openers.end() ? count->second : std::uint64_t{0});
    }
  }
  page.family("export_state", MetricType::gauge,
              "1 for the state that it is in: waiting for its storage, hung (a request is 10 s "
              "old), or served.");
  for (const auto& [name, use] : uses) {
    const auto named = std::ranges::find(exports, name, &ExportStatus::name);
    const bool waits = named != exports.end() && named->waits();
    page.state({{"export", name}},
               waits                      ? "waiting"
               : use.oldest >= kHungAfter ? "hung"
                                          : "served",
               {"served", "waiting", "hung"});
  }
  page.family("export_displaced", MetricType::gauge,
              "1: its path leads to other storage than clients have, or nowhere.");
  std::map<std::string, bool> displaced;  // users' own directories may have files of one name
  for (const ExportStatus& each : catalogue.displaced_files()) displaced[each.name] = true;
  for (const ExportStatus& each : exports) displaced[each.name] |= !each.displaced.empty();
  for (const auto& [name, is] : displaced)
    page.sample({{"export", name}}, std::uint64_t{is ? 1U : 0U});
  page.family("export_size_bytes", MetricType::gauge, "Its size; 0 while it waits.");
  for (const ExportStatus& each : exports) page.sample({{"export", each.name}}, each.size);
  add_space(page, exports);
  add_throttled(page, exports);
}

/// Those that have lines of their own, and the sum of the others.
void add_sessions(Exposition& page, const Sessions& sessions, std::uint32_t queue_depth) {
  const std::size_t shown = std::min(sessions.size(), kMostSessionsInMetrics);
  const auto each = [&](const char* name, MetricType type, const char* help, auto value) {
    page.family(name, type, help);
    for (std::size_t i = 0; i < shown; ++i) {
      page.sample({{"session", sessions[i].name}}, std::uint64_t{value(sessions[i])});
    }
    if (shown == sessions.size()) return;
    std::uint64_t rest = 0;
    for (std::size_t i = shown; i < sessions.size(); ++i) rest += value(sessions[i]);
    page.sample({{"session", MeterBook::kOthers}}, rest);
  };
  using Session = rtrs::ServerSessionStatus;
  page.family("sessions", MetricType::gauge, "Sessions of clients.");
  page.sample({}, std::uint64_t{sessions.size()});
  each("session_paths", MetricType::gauge, "Paths of the session that serve.",
       [](const Session& s) -> std::uint64_t {
         return static_cast<std::uint64_t>(
             std::ranges::count_if(s.paths, &Session::Path::connected));
       });
  each("session_devices", MetricType::gauge, "Devices that it has open.",
       [](const Session& s) -> std::uint64_t { return s.items.size(); });
  each("permits_in_use", MetricType::gauge, "Requests of the session that execute.",
       [](const Session& s) -> std::uint64_t { return s.requests; });
  each("session_throttled", MetricType::gauge,
       "Requests that limits of the session, or of exports, hold back.",
       [](const Session& s) -> std::uint64_t {
         std::uint64_t waiting = 0;
         for (const rtrs::SessionItem& item : s.items) waiting += item.waiting;
         return waiting;
       });
  each("permits", MetricType::gauge, "Requests that the session may have under way.",
       [&](const Session&) -> std::uint64_t { return queue_depth; });
}

void add_paths(Exposition& page, const Sessions& sessions) {
  const std::size_t shown = std::min(sessions.size(), kMostSessionsInMetrics);
  const auto each = [&](const char* name, MetricType type, const char* help, auto value) {
    page.family(name, type, help);
    for (std::size_t i = 0; i < shown; ++i) {
      for (const auto& path : sessions[i].paths) {
        page.sample({{"session", sessions[i].name}, {"path", path.peer}},
                    std::uint64_t{value(path)});
      }
    }
  };
  using Path = rtrs::ServerSessionStatus::Path;
  each("path_requests_total", MetricType::counter, "Requests that came over the path.",
       [](const Path& path) { return path.begun; });
  each("path_inflight", MetricType::gauge, "Requests of the path that are not answered.",
       [](const Path& path) { return path.requests; });
}

void add_replays(Exposition& page, rtrs::Repeats repeats, const Sessions& sessions) {
  for (const auto& session : sessions) repeats += session.repeats;
  page.family("replays_total", MetricType::counter,
              "Requests that were sent again: still executing, answered from memory, or fenced "
              "because they came too late.");
  page.sample({{"result", "executing"}}, repeats.attached);
  page.sample({{"result", "answered"}}, repeats.answered);
  page.sample({{"result", "fenced"}}, repeats.dropped);
}

const char* reason_of(int error) {
  switch (error) {
    case ENOENT:
      return "no_such_export";
    case EPERM:
    case EBUSY:
      return "in_use";
    case ESTALE:
      return "stale";
    case EAGAIN:
      return "not_yet";
    case EROFS:
      return "read_only";
    default:
      return "other";
  }
}

void add_refusals(Exposition& page, const std::map<int, std::uint64_t>& refusals) {
  std::map<std::string, std::uint64_t> reasons;
  for (const int error : {ENOENT, EPERM, ESTALE, EAGAIN, EROFS, 0}) reasons[reason_of(error)] = 0;
  for (const auto& [error, count] : refusals) reasons[reason_of(error)] += count;
  page.family("refused_total", MetricType::counter, "Refusals to open a device.");
  for (const auto& [reason, count] : reasons) page.sample({{"reason", reason}}, count);
}

}  // namespace

std::string ServerMetrics::page() const {
  const Sessions sessions = server_.sessions();
  Exposition page;
  add_build_info(page);
  add_operations(page, "export", meters_.read());
  add_exports(page, catalogue_, sessions);
  add_sessions(page, sessions, queue_depth_);
  add_paths(page, sessions);
  page.family("chunk_memory_bytes", MetricType::gauge, "Request memory that the paths take.");
  page.sample({}, server_.memory());
  page.family("chunk_memory_limit_bytes", MetricType::gauge, "Request memory that they may take.");
  page.sample({}, server_.memory_limit());
  add_refusals(page, meters_.refusals());
  page.family("digest_errors_total", MetricType::counter,
              "Frames over TCP that arrived damaged: their CRC32C does not match.");
  page.sample({}, rtrs::digest_errors());
  add_replays(page, server_.past_repeats(), sessions);
  add_ends(page, rtrs::tls::ends_in(certificates_));
  return page.take();
}

Json ServerMetrics::counters() const {
  const Sessions sessions = server_.sessions();
  const auto uses = use_of_exports(sessions);
  Json counters{{"program", "rnbd-server"}, {"devices", Json::array()}, {"paths", Json::array()}};
  for (const auto& [name, reading] : meters_.read()) {
    Json device = counters_of(name, reading);
    const auto use = uses.find(name);
    device["oldest_ms"] =
        use == uses.end()
            ? 0
            : std::chrono::duration_cast<std::chrono::milliseconds>(use->second.oldest).count();
    counters["devices"].push_back(std::move(device));
  }
  for (const auto& session : sessions) {
    for (const auto& path : session.paths) {
      counters["paths"].push_back({{"path", path.peer},
                                   {"session", session.name},
                                   {"state", path.connected ? "connected" : "connecting"},
                                   {"requests", path.begun},
                                   {"in_flight", path.requests},
                                   {"latency_us", Json{}}});
    }
  }
  return counters;
}

std::vector<ControlCommand> ServerMetrics::commands() const {
  return metrics_commands([this] { return page(); }, [this] { return counters(); });
}

}  // namespace rnbd
