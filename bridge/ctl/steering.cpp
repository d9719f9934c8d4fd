// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/steering.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "bridge/client/uri.hpp"
#include "bridge/ctl/reports.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

using Steps = std::vector<CtlStep>;
using MaybeSteps = tl::expected<Steps, std::string>;

/// A row of the inventory, and the control socket of its program.
struct Thing {
  std::string socket;
  CtlJson row;

  std::string text(const char* field) const {
    return row[field].is_string() ? row[field].get<std::string>() : std::string{};
  }
  bool at_server() const { return row["direction"] == "export"; }
  bool connected() const { return row["state"] == "connected"; }
  /// It leads to another server. Only who names the path may tell to trust that one.
  bool elsewhere() const {
    const auto found = row.find("elsewhere");
    return found != row.end() && *found == true;
  }
};
using Things = std::vector<Thing>;

bool is_session_called(const Thing& session, const std::string& name) {
  if (session.text("sessname") == name) return true;
  return !session.at_server() && session.text("program") == name;
}

bool is_device_called(const CtlJson& device, const std::string& name) {
  return std::ranges::any_of(std::array{"mapping_path", "devname", "devpath"},
                             [&](const char* field) { return device[field] == name; });
}

template <class Fits>
Things things(const std::vector<CtlReport>& reports, CtlSide side, CtlObject object, Fits fits) {
  Things found;
  for (const CtlReport& report : reports) {
    const CtlInventory inventory = take_inventory({report}, {}, side);
    for (const CtlJson& row : inventory.of(object)) {
      Thing thing{report.program.socket, row};
      if (fits(thing)) found.push_back(std::move(thing));
    }
  }
  return found;
}

/// "path tcp:10.0.0.1:1234 of session vm1 (client)"
std::string name_of(const Thing& thing, CtlObject object) {
  const char* const side = thing.at_server() ? " (server)" : " (client)";
  const std::string session = "session " + thing.text("sessname");
  return (object == CtlObject::path ? "path " + thing.text("pathname") + " of " + session
                                    : session) +
         side;
}

class Planner {
 public:
  Planner(const CtlAction& action, const std::vector<CtlReport>& reports,
          const std::vector<KernelDevice>& kernel_devices)
      : action_{action}, reports_{reports}, kernel_devices_{kernel_devices} {}

  MaybeSteps plan() const {
    switch (action_.verb) {
      case CtlVerb::add:
        return add();
      case CtlVerb::close:
        return close();
      case CtlVerb::recover:
        if (action_.add_missing && about_paths()) {
          return tl::unexpected(
              std::string{"add-missing is for sessions; write recover session "
                          "SESSION add-missing"});
        }
        if (action_.names.back() == "all") return recover_all();
        break;
      default:
        break;
    }
    return of_one();
  }

 private:
  bool is_of_session(const Thing& path) const {
    return action_.names.size() < 2 || is_session_called(path, action_.names.front()) ||
           has_device(path, action_.names.front());
  }

  /// A client may be called by what it has open, too.
  bool has_device(const Thing& thing, const std::string& name) const {
    if (thing.at_server()) return false;
    return std::ranges::any_of(reports_, [&](const CtlReport& report) {
      if (report.program.socket != thing.socket) return false;
      const CtlInventory its = take_inventory({report}, kernel_devices_, CtlSide::client);
      return std::ranges::any_of(its.devices, [&](const CtlJson& device) {
        return device["program"] == report.program.name && is_device_called(device, name);
      });
    });
  }

  /// All of them if none is named.
  Things paths(CtlSide side, const std::string& name) const {
    return things(reports_, side, CtlObject::path, [&](const Thing& path) {
      return is_of_session(path) && (name.empty() || is_path_called(path.row, name));
    });
  }
  Things sessions(CtlSide side, const std::string& name) const {
    Things found = things(reports_, side, CtlObject::session,
                          [&](const Thing& session) { return is_session_called(session, name); });
    if (!found.empty()) return found;
    return things(reports_, side, CtlObject::session,
                  [&](const Thing& session) { return has_device(session, name); });
  }
  Things paths_of(const Thing& session) const {
    return things(reports_, CtlSide::client, CtlObject::path,
                  [&](const Thing& path) { return path.socket == session.socket; });
  }

  static std::string nothing(const std::string& kind, const std::string& name) {
    return "there is no " + kind + " '" + name + "'; `rnbd-ctl list sessions` tells of all";
  }

  static tl::expected<Thing, std::string> only(const Things& found, CtlObject object,
                                               const std::string& name, const std::string& advice) {
    if (found.size() == 1) return found.front();
    if (found.empty()) return tl::unexpected(nothing(rnbd::name_of(object), name));
    std::string all;
    for (const Thing& each : found) all += (all.empty() ? "" : ", ") + name_of(each, object);
    return tl::unexpected("'" + name + "' may be " + all + "; " + advice);
  }

  MaybeSteps add() const {
    const std::string& name = action_.names.front();
    const Things found = sessions(CtlSide::client, name);
    if (found.empty()) return tl::unexpected(nothing("session or device", name));
    const auto session =
        only(found, CtlObject::session, name, "write the name of the program instead");
    if (!session) return tl::unexpected(session.error());
    const auto path = complete(*session, without_ip(action_.names.back()));
    if (!path) return tl::unexpected(path.error());
    return Steps{{session->socket, "add-path " + *path}};
  }

  /// A part that is left out is as in the session's URI; a program that has none says what it
  /// thinks of it.
  static tl::expected<std::string, std::string> complete(const Thing& session,
                                                         const std::string& text) {
    const auto uri = parse_device_uri(session.text("srvname"));
    if (!uri || !uri->servers.empty()) return text;
    const auto path = parse_path(text, uri->transport, uri->port);
    if (!path) return tl::unexpected(path.error());
    const std::string preference = std::to_string(path->preference);
    return to_string(*path) + (path->preference != 0 ? ",preference=" + preference : "");
  }

  /// The server ends sessions as a whole.
  MaybeSteps close() const {
    const std::string& name = action_.names.front();
    const Things found =
        things(reports_, CtlSide::server, CtlObject::device, [&](const Thing& device) {
          const bool its = action_.names.size() < 2 || device.text("sessname") == action_.names[1];
          const bool is_open = !device.row["sessname"].is_null();
          return device.text("mapping_path") == name && is_open && its;
        });
    if (found.empty()) {
      return tl::unexpected("nobody has '" + name + "' open" +
                            (action_.names.size() < 2 ? "" : " in session " + action_.names[1]) +
                            "; `rnbd-ctl server list` tells of all");
    }
    Steps steps;
    for (const Thing& device : found) steps.push_back(evict(device));
    return steps;
  }

  CtlStep evict(const Thing& thing) const {
    return {thing.socket, "evict " + thing.text("sessname") + (action_.force ? " --force" : "")};
  }

  /// A session or path that has this name.
  MaybeSteps of_one() const {
    const bool may_be_session = action_.object != CtlObject::path && action_.names.size() == 1 &&
                                action_.verb != CtlVerb::remove && action_.verb != CtlVerb::readd;
    const bool may_be_path = action_.object != CtlObject::session && !action_.add_missing;
    const CtlSide side = action_.verb == CtlVerb::disconnect ? action_.side : CtlSide::client;
    const std::string& name = action_.names.back();
    const Things its_sessions = may_be_session ? sessions(side, name) : Things{};
    const Things its_paths = may_be_path ? paths(side, name) : Things{};
    if (its_sessions.empty() && its_paths.empty()) {
      return tl::unexpected(nothing(!may_be_path      ? "session"
                                    : !may_be_session ? "path"
                                                      : "session or path",
                                    name));
    }
    if (!its_sessions.empty() && !its_paths.empty()) {
      return tl::unexpected("'" + name +
                            "' is a session and a path; write session or path in front");
    }
    if (its_paths.empty()) {
      const auto session = only(its_sessions, CtlObject::session, name,
                                "write client or server in front, or the name of the program");
      if (!session) return tl::unexpected(session.error());
      return of_session(*session);
    }
    const bool of_one_session = std::ranges::all_of(
        its_paths, [&](const Thing& path) { return path.socket == its_paths.front().socket; });
    const auto path =
        only(its_paths, CtlObject::path, name,
             of_one_session ? "write the whole path, as in " + its_paths.front().text("pathname")
                            : "write the session in front of it, or the whole path with its port");
    if (!path) return tl::unexpected(path.error());
    return of_paths({*path});
  }

  MaybeSteps of_session(const Thing& session) const {
    if (session.at_server()) return Steps{evict(session)};
    if (action_.add_missing) return recover(paths_of(session), missing_in(session.socket));
    Things its = paths_of(session);
    if (action_.verb == CtlVerb::reconnect) std::erase_if(its, std::mem_fn(&Thing::elsewhere));
    return of_paths(its);
  }

  MaybeSteps of_paths(const Things& found) const {
    if (action_.verb == CtlVerb::recover) return recover(found);
    Steps steps;
    for (const Thing& path : found) add_steps(path, steps);
    return steps;
  }

  void add_steps(const Thing& path, Steps& steps) const {
    const std::string name = path.text("pathname");
    switch (action_.verb) {
      case CtlVerb::remove:
        steps.push_back({path.socket, "remove-path " + name});
        break;
      case CtlVerb::readd:
        steps.push_back({path.socket, "remove-path " + name});
        steps.push_back({path.socket, "add-path " + name + preference_of(path)});
        break;
      case CtlVerb::reconnect:
        if (path.connected()) steps.push_back({path.socket, "disconnect " + name});
        steps.push_back({path.socket, "reconnect " + name});
        break;
      default:
        steps.push_back({path.socket, "disconnect " + name});
    }
  }

  static std::string preference_of(const Thing& path) {
    const CtlJson& preference = path.row["preference"];
    const bool told = path.text("pathname").find(',') != std::string::npos;
    if (told || !preference.is_number() || preference == 0) return "";
    return ",preference=" + preference.dump();
  }

  bool about_paths() const { return action_.object == CtlObject::path || action_.names.size() > 1; }

  /// Those that a program began with, and that were removed since.
  Steps missing_in(const std::string& socket) const {
    Steps steps;
    for (const CtlReport& report : reports_) {
      const auto missing = report.status.find("missing_paths");
      if (report.program.socket != socket || missing == report.status.end()) continue;
      for (const CtlJson& path : *missing) {
        const auto said = [&](const char* name) {
          const auto found = path.find(name);
          return found != path.end() ? *found : CtlJson{};
        };
        const Thing thing{socket,
                          {{"pathname", said("missing_path")}, {"preference", said("preference")}}};
        if (thing.text("pathname").empty()) continue;
        steps.push_back({socket, "add-path " + thing.text("pathname") + preference_of(thing)});
      }
    }
    return steps;
  }

  Steps recover_all() const {
    Steps missing;
    for (const CtlReport& report : reports_) {
      if (!action_.add_missing) break;
      const Steps its = missing_in(report.program.socket);
      missing.insert(missing.end(), its.begin(), its.end());
    }
    return recover(paths(CtlSide::client, ""), std::move(missing));
  }

  static Steps recover(const Things& found, Steps steps = {}) {
    for (const Thing& path : found) {
      if (path.connected() || path.elsewhere()) continue;
      steps.push_back({path.socket, "reconnect " + path.text("pathname")});
    }
    return steps;
  }

  const CtlAction& action_;
  const std::vector<CtlReport>& reports_;
  const std::vector<KernelDevice>& kernel_devices_;
};

}  // namespace

tl::expected<std::vector<CtlStep>, std::string> steps_of(
    const CtlAction& action, const std::vector<CtlReport>& reports,
    const std::vector<KernelDevice>& kernel_devices) {
  return Planner{action, reports, kernel_devices}.plan();
}

std::vector<std::string> programs_of_session(const std::string& session,
                                             const std::vector<CtlReport>& reports) {
  std::vector<std::string> names;
  const auto its = things(reports, CtlSide::client, CtlObject::session,
                          [&](const Thing& thing) { return thing.text("sessname") == session; });
  for (const Thing& thing : its) names.push_back(thing.text("program"));
  return names;
}

}  // namespace rnbd
