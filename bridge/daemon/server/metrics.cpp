// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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

/// The lines of an export, or of several together.
struct ExportLine {
  std::string name;
  bool named = false;       ///< it stands in the configuration; others are files of a search path
  bool served_once = true;  ///< it is more than a file that is displaced
  bool together = false;    ///< several, and not always the same: nothing that only grows is told
  rtrs::Duration oldest{};
  std::map<std::string, std::uint64_t> openers;  ///< by access mode
  bool waits = false;
  bool displaced = false;
  std::uint64_t size = 0;
  std::optional<StorageSpace> space;
  ThrottleReading throttled{};

  const char* state() const { return waits ? "waiting" : oldest >= kHungAfter ? "hung" : "served"; }
  /// The higher, the sooner an operator looks for it.
  unsigned importance() const {
    if (waits || displaced || oldest >= kHungAfter) return 2;
    return openers.empty() && throttled.waiting == 0 ? 0 : 1;
  }
  /// Of several together the worst is told, and what can be added up.
  void add(const ExportLine& other) {
    named |= other.named;
    served_once |= other.served_once;
    oldest = std::max(oldest, other.oldest);
    for (const auto& [access, count] : other.openers) openers[access] += count;
    waits |= other.waits;
    displaced |= other.displaced;
    size += other.size;
    throttled.waiting += other.throttled.waiting;
    throttled.waited += other.throttled.waited;
    throttled.nanoseconds += other.throttled.nanoseconds;
  }
};

void add_users(std::map<std::string, ExportLine>& lines, const Sessions& sessions) {
  for (const auto& session : sessions) {
    for (const auto& item : session.items) {
      ExportLine& line = lines[item.name];
      line.oldest = std::max(line.oldest, item.oldest);
      ++line.openers[item.how];
    }
  }
}

/// By name. Beyond as many as meters have names, the least important are told together.
std::vector<ExportLine> lines_of(const ExportCatalogue& catalogue, const Sessions& sessions) {
  std::map<std::string, ExportLine> all;
  add_users(all, sessions);
  // Users' own directories may have files of one name.
  for (const auto& file : catalogue.displaced_files()) {
    const auto [line, is_new] = all.try_emplace(file.name);
    if (is_new) line->second.served_once = false;
    line->second.displaced = true;
  }
  for (const ExportStatus& each : catalogue.exports()) {
    ExportLine& line = all[each.name];
    line.named = line.served_once = true;
    line.waits = each.waits();
    line.displaced |= !each.displaced.empty();
    line.size = each.size;
    line.space = each.space;
    line.throttled = each.throttled;
  }
  std::vector<ExportLine> lines;
  for (auto& [name, line] : all) {
    line.name = name;
    lines.push_back(std::move(line));
  }
  if (lines.size() <= MeterBook::kMostNames) return lines;
  std::ranges::stable_sort(lines, std::greater{}, &ExportLine::importance);
  ExportLine others;
  others.name = MeterBook::kOthers;
  others.together = true;
  for (std::size_t i = MeterBook::kMostNames; i < lines.size(); ++i) others.add(lines[i]);
  lines.resize(MeterBook::kMostNames);
  std::ranges::sort(lines, {}, &ExportLine::name);
  lines.push_back(std::move(others));
  return lines;
}

void add_exports(Exposition& page, const ExportCatalogue& catalogue, const Sessions& sessions) {
  const std::vector<ExportLine> lines = lines_of(catalogue, sessions);
  const auto each = [&](const char* name, MetricType type, const char* help, auto tells,
                        auto value) {
    page.family(name, type, help);
    for (const ExportLine& line : lines)
      if (tells(line)) page.sample({{"export", line.name}}, value(line));
  };
  const auto served = [](const ExportLine& line) { return line.served_once; };
  const auto named = [](const ExportLine& line) { return line.named; };
  const auto counted = [](const ExportLine& line) { return line.named && !line.together; };
  const auto has_space = [](const ExportLine& line) { return line.space.has_value(); };
  each("export_oldest_request_seconds", MetricType::gauge,
       "For how long the oldest request that is under way has been at the storage, seen every few "
       "seconds.",
       served, [](const ExportLine& line) { return in_seconds(line.oldest); });
  page.family("export_openers", MetricType::gauge, "Sessions that have it open.");
  for (const ExportLine& line : lines) {
    for (const char* access : {"ro", "rw", "migration", "unclaimed"}) {
      const auto count = line.openers.find(access);
      if (!line.served_once) continue;
      page.sample({{"export", line.name}, {"access", access}},
                  count != line.openers.end() ? count->second : std::uint64_t{0});
    }
  }
  page.family("export_state", MetricType::gauge,
              "1 for the state that it is in: waiting for its storage, hung (a request is 10 s "
              "old), or served.");
  for (const ExportLine& line : lines) {
    if (line.served_once)
      page.state({{"export", line.name}}, line.state(), {"served", "waiting", "hung"});
  }
  each(
      "export_displaced", MetricType::gauge,
      "1: its path leads to other storage than clients have, or nowhere.",
      [](const ExportLine& line) { return line.named || line.displaced; },
      [](const ExportLine& line) { return std::uint64_t{line.displaced ? 1U : 0U}; });
  each("export_size_bytes", MetricType::gauge, "Its size; 0 while it waits.", named,
       [](const ExportLine& line) { return line.size; });
  each("export_unallocated_bytes", MetricType::gauge,
       "What writes may still take of the file's file system.", has_space,
       [](const ExportLine& line) { return line.space->unallocated; });
  each("export_filesystem_free_bytes", MetricType::gauge,
       "What is free of that file system, for others than root.", has_space,
       [](const ExportLine& line) { return line.space->free; });
  each("export_filesystem_bytes", MetricType::gauge, "The size of that file system.", has_space,
       [](const ExportLine& line) { return line.space->whole; });
  each("export_throttled", MetricType::gauge, "Requests that the export's limits hold back.", named,
       [](const ExportLine& line) { return line.throttled.waiting; });
  each("export_throttled_total", MetricType::counter,
       "Requests that have waited because of the export's limits.", counted,
       [](const ExportLine& line) { return line.throttled.waited; });
  each("export_throttled_seconds_total", MetricType::counter,
       "For how long these have waited together.", counted, [](const ExportLine& line) {
         return in_seconds(std::chrono::nanoseconds{line.throttled.nanoseconds});
       });
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

LimitUses ServerMetrics::limits() const {
  LimitUses limits = limits_of_process();
  limits.push_back({"max-sessions", server_.sessions().size(), settings_.max_sessions});
  limits.push_back({"max-connections", server_.connections(), settings_.max_connections});
  // Lent memory comes back when a client needs it.
  const std::uint64_t memory = server_.memory();
  const std::uint64_t kept = memory - std::min(memory, server_.memory_lent());
  limits.push_back({"memory-limit", kept, server_.memory_limit()});
  return limits;
}

std::string ServerMetrics::page() const {
  const Sessions sessions = server_.sessions();
  Exposition page;
  add_build_info(page);
  add_operations(page, "export", meters_.read());
  add_exports(page, catalogue_, sessions);
  add_limits(page, limits());
  add_sessions(page, sessions, settings_.queue_depth);
  add_paths(page, sessions);
  page.family("chunk_memory_bytes", MetricType::gauge, "Request memory that the paths take.");
  page.sample({}, server_.memory());
  page.family("chunk_memory_lent_bytes", MetricType::gauge,
              "Request memory of these that busy paths have borrowed.");
  page.sample({}, server_.memory_lent());
  page.family("chunk_memory_waits_total", MetricType::counter,
              "Times that requests of a path began to wait for memory.");
  page.sample({}, server_.memory_waits());
  page.family("chunk_memory_limit_bytes", MetricType::gauge, "Request memory that they may take.");
  page.sample({}, server_.memory_limit());
  add_refusals(page, meters_.refusals());
  page.family("digest_errors_total", MetricType::counter,
              "Frames over TCP that arrived damaged: their CRC32C does not match.");
  page.sample({}, rtrs::digest_errors());
  add_replays(page, server_.past_repeats(), sessions);
  add_ends(page, rtrs::tls::ends_in(settings_.tls_keys.certificates));
  return page.take();
}

Json ServerMetrics::counters() const {
  const Sessions sessions = server_.sessions();
  std::map<std::string, ExportLine> lines;
  add_users(lines, sessions);
  Json counters{{"program", "rnbd-server"}, {"devices", Json::array()}, {"paths", Json::array()}};
  for (const auto& [name, reading] : meters_.read()) {
    Json device = counters_of(name, reading);
    const auto line = lines.find(name);
    device["oldest_ms"] =
        line == lines.end()
            ? 0
            : std::chrono::duration_cast<std::chrono::milliseconds>(line->second.oldest).count();
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
