// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/commands.hpp"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bridge/client/annex.hpp"
#include "bridge/client/uri.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

using Answer = tl::expected<Json, Failure>;
using Done = tl::expected<void, Failure>;

const char* state_name(rtrs::PathState state) {
  switch (state) {
    case rtrs::PathState::connecting:
      return "connecting";
    case rtrs::PathState::connected:
      return "connected";
    case rtrs::PathState::waiting:
      return "waiting";
    case rtrs::PathState::disconnected:
      return "disconnected";
  }
  return "?";
}

Json access_of(const rtrs::PathStatus& path) {
  if (!path.access) return nullptr;
  switch (*path.access) {
    case rtrs::wire::PathAccess::optimized:
      return "optimized";
    case rtrs::wire::PathAccess::non_optimized:
      return "non-optimized";
    case rtrs::wire::PathAccess::inaccessible:
      return "inaccessible";
  }
  return nullptr;
}

Json describe(const rtrs::PathStatus& path, bool has_session) {
  const bool idle = !has_session && path.state == rtrs::PathState::waiting;
  const auto latency = std::chrono::duration_cast<std::chrono::microseconds>(path.latency);
  Json told{{"address", to_string(path.address)},
            {"state", idle ? "idle" : state_name(path.state)},
            {"preference", path.address.preference},
            {"in_use", path.in_use},
            {"leaving", path.leaving},
            {"access", access_of(path)},
            {"requests", path.requests},
            {"in_flight", path.in_flight},
            {"reconnects", path.connects > 0 ? path.connects - 1 : 0},
            {"latency_us", latency.count() > 0 ? Json(latency.count()) : Json()},
            {"security", path.security},
            {"trouble", path.trouble}};
  if (path.foreign) told["elsewhere"] = true;
  if (path.silent > rtrs::Duration::zero()) {
    told["suspect"] = true;
    told["silent_ms"] = std::chrono::floor<std::chrono::milliseconds>(path.silent).count();
  }
  return told;
}

/// Those of the command line that were removed since.
Json missing_paths(const ClientConfig& config, const SessionStatus& status) {
  Json missing = Json::array();
  if (!config.servers.empty()) return missing;  // their paths stay as they are
  for (const rtrs::PathAddress& path : config.paths) {
    const bool there = std::ranges::any_of(status.paths, [&](const rtrs::PathStatus& each) {
      return each.address == path && !each.leaving;
    });
    if (there) continue;
    missing.push_back({{"missing_path", to_string(path)}, {"preference", path.preference}});
  }
  return missing;
}

/// Null while a path takes requests, and without a session.
Json seconds_without_path(const SessionStatus& status) {
  if (status.without_path_now == rtrs::Duration::zero()) return nullptr;
  return std::chrono::floor<std::chrono::seconds>(status.without_path_now).count();
}

Json describe(const ClientConfig& config, const SessionStatus& status) {
  const rtrs::ServerId id = status.server_id;
  Json answer{{"server", config.server()},
              {"server_id", id != 0 ? Json(rtrs::server_id_text(id)) : Json()},
              {"session", status.name.empty() ? Json() : Json(status.name)},
              {"version", RNBDKIT_VERSION},
              {"policy", name_of(status.policy)},
              {"queue_depth", status.limits ? Json(status.limits->queue_depth) : Json()},
              {"max_io_size", status.limits ? Json(status.limits->max_io_size) : Json()},
              {"trouble", status.trouble},
              {"seconds_without_path", seconds_without_path(status)},
              {"paths", Json::array()},
              {"missing_paths", missing_paths(config, status)},
              {"devices", Json::array()}};
  for (const rtrs::PathStatus& path : status.paths) {
    answer["paths"].push_back(describe(path, !status.name.empty()));
  }
  for (const DeviceStatus& device : status.devices) {
    answer["devices"].push_back({{"device", device.name},
                                 {"size", device.size},
                                 {"access", device.read_only ? "ro" : "rw"},
                                 {"uuid", device.uuid.empty() ? Json() : Json(device.uuid)},
                                 {"users", device.users},
                                 {"trouble", device.trouble}});
    // Tables have a column for it only when it is news.
    if (device.shrunk) answer["devices"].back()["shrunk"] = true;
  }
  return answer;
}

Answer answer(const Done& done) {
  if (!done) return tl::unexpected(done.error());
  return Json::object();
}

/// Of a disk whose paths are not one session's.
std::optional<Failure> refusal_of_paths(Connections& connections) {
  const DiskSource* const source = connections.source();
  if (source == nullptr) return std::nullopt;
  return Failure{EOPNOTSUPP, source->why_no_paths()};
}

/// A command with a path as its argument.
ControlCommand path_command(const ClientConfig& config, Connections& connections, const char* name,
                            const char* help,
                            Done (SharedSession::*change)(const rtrs::PathAddress&)) {
  return {name, "[tcp:|rdma:][SRC@]DST[:PORT][,preference=N]", help,
          [&config, &connections, change](const std::string& text) -> Answer {
            if (const auto no = refusal_of_paths(connections)) return tl::unexpected(*no);
            const rtrs::PathAddress& first = config.paths.front();
            const auto path = parse_path(text, first.transport, first.port);
            if (!path) return tl::unexpected(Failure{EINVAL, path.error()});
            return answer((connections.session().*change)(*path));
          }};
}

}  // namespace

std::vector<ControlCommand> client_commands(const ClientConfig& config, Connections& connections) {
  std::vector<ControlCommand> commands{
      {"status", "", "The session, its paths, and what is open.",
       [&](const std::string&) -> Answer { return describe(config, connections.status()); },
       /*for_readers=*/true},
      path_command(config, connections, "add-path",
                   "Gives the session another path to the server, at once.",
                   &SharedSession::add_path),
      path_command(config, connections, "remove-path",
                   "A path goes; what is in flight on it goes over others.",
                   &SharedSession::remove_path),
      path_command(config, connections, "disconnect",
                   "Takes a path out of service until reconnect.", &SharedSession::disconnect),
      path_command(config, connections, "reconnect", "Puts it into service again.",
                   &SharedSession::reconnect),
      {"policy", "round-robin|min-inflight|min-latency",
       "Which of equally good paths takes a request.",
       [&](const std::string& name) -> Answer {
         const auto policy = parse_policy(name);
         if (!policy) return tl::unexpected(Failure{EINVAL, policy.error()});
         if (const auto no = refusal_of_paths(connections)) return tl::unexpected(*no);
         connections.session().set_policy(*policy);
         return Json::object();
       }},
  };
  for (const ClientAnnex* annex : client_annexes()) {
    if (annex->commands == nullptr) continue;
    for (ControlCommand& command : annex->commands(config, connections.source()))
      commands.push_back(std::move(command));
  }
  return commands;
}

}  // namespace rnbd
