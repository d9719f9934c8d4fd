// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/control.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bridge/daemon/server/evict.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

using rtrs::wire::PathAccess;

Json status_of_paths(const rtrs::ServerSessionStatus& session,
                     const std::vector<rtrs::ListenerStatus>& listeners) {
  Json paths = Json::array();
  for (const auto& path : session.paths) {
    paths.push_back({{"session", session.name},
                     {"client", path.peer},
                     {"listener", listeners.at(path.listener).address},
                     {"state", path.connected ? "connected" : "connecting"},
                     {"access", to_string(path.access)},
                     {"access_known", path.access_known},
                     {"connections", path.connections},
                     {"requests", path.requests},
                     {"security", path.security}});
  }
  return paths;
}

Json text_or_null(std::string text) { return text.empty() ? Json{} : Json(std::move(text)); }

/// Null: there is none.
Json limit_of(std::uint64_t limit) { return limit != 0 ? Json(limit) : Json{}; }

const char* state_of(const ExportStatus& status) {
  return status.waits()              ? "waiting"
         : !status.displaced.empty() ? "displaced"
         : status.shrunk_to          ? "shrunk"
                                     : "open";
}

std::string trouble_of(const ExportStatus& status) {
  if (status.waits()) return status.trouble;
  if (!status.displaced.empty()) return status.displaced;
  if (!status.shrunk_to) return "";
  return "its storage has shrunk to " + std::to_string(*status.shrunk_to) +
         " bytes; clients have it with " + std::to_string(status.size) +
         " bytes and get EIO behind that end; enlarge it again";
}

/// Of those that wait the size is not known. A file of the search path is there while it is in
/// trouble.
Json status_of_exports(const ExportCatalogue& catalogue) {
  Json exports = Json::array();
  std::vector<ExportStatus> all = catalogue.exports();
  std::ranges::move(catalogue.displaced_files(), std::back_inserter(all));
  for (const ExportStatus& status : all) {
    exports.push_back({{"export", status.name},
                       {"state", state_of(status)},
                       {"size", status.waits() ? Json{} : Json(status.size)},
                       {"read_only", status.read_only},
                       {"iops_limit", limit_of(status.limits.iops)},
                       {"bandwidth_limit", limit_of(status.limits.bandwidth)},
                       {"uuid", text_or_null(uuid_text(status.uuid))},
                       {"trouble", trouble_of(status)}});
    if (const auto& space = status.space) {
      exports.back()["space"] = {
          {"unallocated", space->unallocated}, {"free", space->free}, {"whole", space->whole}};
    }
  }
  return exports;
}

/// Of those that there are.
void add_directions(const Directions& directions, Json& answer) {
  if (!directions.paths.empty()) answer["advertised"] = Json::array();
  for (const std::string& path : directions.paths) answer["advertised"].push_back({{"path", path}});
  if (!directions.referrals.empty()) answer["referrals"] = Json::array();
  for (const Referral& each : directions.referrals)
    answer["referrals"].push_back({{"referral", each.name}, {"server", each.uri}});
}

Json status_of_listeners(const std::vector<rtrs::ListenerStatus>& listeners) {
  Json all = Json::array();
  for (const auto& listener : listeners) {
    all.push_back({{"listener", listener.address},
                   {"access", to_string(listener.access)},
                   {"tls", to_string(listener.tls)},
                   {"auth", to_string(listener.auth)},
                   {"state", listener.waits() ? "waiting" : "listening"},
                   {"trouble", listener.trouble}});
  }
  return all;
}

/// The newest failure of each storage that has failed in this life of the server.
Json status_of_failures(const MeterBook& meters) {
  Json all = Json::array();
  for (const auto& [name, reading] : meters.read()) {
    const StorageFailure& last = reading.last_failure;
    if (last.at == 0) continue;
    all.push_back({{"failed", name},
                   {"operation", to_string(last.operation)},
                   {"errno", strerrorname_np(last.error)},
                   {"at", utc_text(last.at)},
                   {"seconds_ago", std::max<std::int64_t>(0, std::time(nullptr) - last.at)}});
  }
  return all;
}

Json status(rtrs::Server& server, const ExportCatalogue& catalogue, const MeterBook& meters,
            Limits of_sessions, const ServerMetrics& metrics) {
  // Read the sessions first: their paths name listeners, and the list of these only grows.
  const auto sessions = server.sessions();
  const auto listeners = server.listeners();
  Json answer{{"server_id", rtrs::server_id_text(server.id())},
              {"version", RNBDKIT_VERSION},
              {"memory", server.memory()},
              {"memory_lent", server.memory_lent()},
              {"memory_waits", server.memory_waits()},
              {"limits", status_of_limits(metrics.limits())}};
  answer["listeners"] = status_of_listeners(listeners);
  const std::string trouble = catalogue.files().trouble();
  if (!trouble.empty()) answer["search_path"] = "waiting: " + trouble;
  const std::string ending = server.ending_certificates();
  if (!ending.empty()) answer["certificates"] = ending;
  if (of_sessions.iops != 0) answer["session_iops_limit"] = of_sessions.iops;
  if (of_sessions.bandwidth != 0) answer["session_bandwidth_limit"] = of_sessions.bandwidth;
  answer["exports"] = status_of_exports(catalogue);
  add_directions(catalogue.directions(), answer);
  if (Json out = status_of_evicted(catalogue.evicted()); !out.empty()) answer["evicted"] = out;
  if (Json failed = status_of_failures(meters); !failed.empty()) answer["last_failures"] = failed;
  for (const char* name : {"sessions", "paths", "devices"}) answer[name] = Json::array();
  for (const auto& session : sessions) {
    const rtrs::Identity& user = session.identity;
    answer["sessions"].push_back({{"session", session.name},
                                  {"identity", user.name},
                                  {"proven_by", to_string(user.how)},
                                  {"key", user.key},
                                  {"paths", session.paths.size()},
                                  {"devices", session.items.size()},
                                  {"requests", session.requests}});
    for (auto& path : status_of_paths(session, listeners)) {
      answer["paths"].push_back(std::move(path));
    }
    for (const auto& item : session.items) {
      answer["devices"].push_back({{"session", session.name},
                                   {"device", item.name},
                                   {"access_mode", item.how},
                                   {"requests", item.requests},
                                   {"waiting", item.waiting}});
    }
  }
  return answer;
}

std::optional<PathAccess> parse_access(const std::string& word) {
  for (const auto access :
       {PathAccess::optimized, PathAccess::non_optimized, PathAccess::inaccessible}) {
    if (word == to_string(access)) return access;
  }
  return std::nullopt;
}

tl::expected<Json, rtrs::Failure> change_access(rtrs::Server& server, const std::string& argument) {
  const auto fail = [](int error, std::string text) {
    return tl::unexpected(rtrs::Failure{error, std::move(text)});
  };
  const std::size_t end = std::min(argument.find_first_of(" \t"), argument.size());
  const std::string wanted = argument.substr(0, end);
  const std::size_t word = std::min(argument.find_first_not_of(" \t", end), argument.size());
  const auto access = parse_access(argument.substr(word));
  if (!access) {
    return fail(EINVAL, "write access LISTENER optimized, non-optimized or inaccessible");
  }
  std::string known;
  const auto listeners = server.listeners();
  for (unsigned i = 0; i < listeners.size(); ++i) {
    if (listeners[i].address == wanted && listeners[i].waits()) {
      return fail(EAGAIN, "nobody comes by " + wanted + ", which waits: " + listeners[i].trouble);
    }
    if (listeners[i].address == wanted) {
      server.set_access(i, *access);
      return Json::object();
    }
    known += (known.empty() ? "" : ", ") + listeners[i].address;
  }
  return fail(ENOENT, "there is no listener '" + wanted + "'; there are " + known);
}

}  // namespace

std::vector<ControlCommand> server_commands(rtrs::Server& server, const ExportCatalogue& catalogue,
                                            const BlockServer& handler, const MeterBook& meters,
                                            Reloader& reloader, const ServerMetrics& metrics) {
  return {{"status", "",
           "listeners, exports, sessions with their paths and devices, memory of requests",
           [&](const std::string&) -> tl::expected<Json, rtrs::Failure> {
             return status(server, catalogue, meters, handler.session_limits(), metrics);
           },
           /*for_readers=*/true},
          {"access", "LISTENER ACCESS",
           "optimized, non-optimized or inaccessible: whether clients send I/O over this listener",
           [&server](const std::string& argument) { return change_access(server, argument); }},
          reloader.command()};
}

}  // namespace rnbd
