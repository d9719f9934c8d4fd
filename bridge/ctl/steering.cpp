// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/steering.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <thread>
#include <utility>

#include "bridge/client/uri.hpp"
#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

using Steps = std::vector<CtlStep>;
using MaybeSteps = tl::expected<Steps, std::string>;
using std::chrono::steady_clock;

constexpr double kUsualWait = 5;  ///< seconds
constexpr std::chrono::milliseconds kLookAtPathEvery{100};

// ---- Steps --------------------------------------------------------------------------------------

/// A row of the inventory, and the control socket of its program.
struct Thing {
  std::string socket;
  CtlJson row;

  std::string text(const char* field) const { return said_text(row, field); }
  bool at_server() const { return row["direction"] == "export"; }
  bool connected() const { return row["state"] == "connected"; }
  /// True: it leads to another server. Only a command that names the path may trust that one.
  bool elsewhere() const { return said(row, "elsewhere") == true; }
};
using Things = std::vector<Thing>;

bool is_session_called(const Thing& session, const std::string& name) {
  if (session.text("sessname") == name) return true;
  if (session.at_server()) return false;
  const CtlJson& disks = said_list(session.row, "serves");
  return session.text("program") == name || std::ranges::find(disks, CtlJson(name)) != disks.end();
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
        return is_of_program(device, report) && is_device_called(device, name);
      });
    });
  }

  /// The paths of this name, or all if none is named.
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

  /// The steps that bring back paths that a program began with, and that were removed since.
  Steps missing_in(const std::string& socket) const {
    Steps steps;
    for (const CtlReport& report : reports_) {
      if (report.program.socket != socket) continue;
      for (const CtlJson& path : said_list(report.status, "missing_paths")) {
        const Thing thing{
            socket,
            {{"pathname", said(path, "missing_path")}, {"preference", said(path, "preference")}}};
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

// ---- Effects of steps ---------------------------------------------------------------------------

/// A word behind the first one, if that is one of these.
std::string path_told_by(const CtlStep& step, std::initializer_list<std::string_view> commands) {
  const std::size_t blank = std::min(step.line.find(' '), step.line.size());
  const bool told =
      std::ranges::find(commands, std::string_view{step.line}.substr(0, blank)) != commands.end();
  return told ? step.line.substr(std::min(blank + 1, step.line.size())) : "";
}

/// The path without a preference, which an address may tell or not.
std::string without_preference(const std::string& path) {
  return path.substr(0, std::min(path.find(','), path.size()));
}

const CtlReport* report_of(const CtlStep& step, const std::vector<CtlReport>& reports) {
  const auto its = std::ranges::find_if(
      reports, [&](const CtlReport& report) { return report.program.socket == step.socket; });
  return its != reports.end() ? &*its : nullptr;
}

/// Devices that a session at a server may have written to: "disk0, disk1".
std::string written_by(const std::string& session, const CtlReport& report) {
  std::string text;
  for (const CtlJson& device : said_list(report.status, "devices")) {
    const std::string access = said_text(device, "access_mode");
    const bool reads = access == "ro" || access == "unclaimed";
    if (said_text(device, "session") != session || reads) continue;
    text += (text.empty() ? "" : ", ") + said_text(device, "device");
  }
  return text;
}

/// "rnbd-ctl server readmit host1" for each client that is out by this answer.
std::string lets_in_again(const CtlJson& answer, const std::string& program) {
  std::string text;
  for (const CtlJson& out : said_list(answer, "evicted")) {
    text +=
        (text.empty() ? "" : " and ") + ("rnbd-ctl " + program) + ' ' + said_text(out, "let_in_by");
  }
  return text;
}

std::string told_of_eviction(std::string session, const CtlReport& report, const CtlJson& answer) {
  constexpr std::string_view kForce = " --force";
  if (session.ends_with(kForce)) session.resize(session.size() - kForce.size());
  const std::string written = written_by(session, report);
  std::string text = "session " + session + ": ended";
  if (!written.empty()) text += "; its users of " + written + " get EIO until they open it anew";
  const std::string command = lets_in_again(answer, report.program.name);
  if (command.empty()) return text + "; its client may open it anew";
  return text + "; its client opens nothing here until you write " + command;
}

// ---- Carrying steps out -------------------------------------------------------------------------

/// The program's answer. Errors: the obstacle.
tl::expected<CtlJson, std::string> take(const CtlStep& step) {
  const auto answer = ask_control_socket(step.socket, step.line);
  if (!answer) return tl::unexpected(step.socket + ": " + answer.error().text);
  CtlJson json = parse_answer(*answer);
  if (json.is_null()) {
    return tl::unexpected(step.socket + " does not answer as a control socket does");
  }
  if (json.contains("error")) return tl::unexpected(message_of(json));
  return json;
}

// ---- Who would be cut off -----------------------------------------------------------------------

/// "disk0 is /dev/nbd0, mounted at /mnt", "disk1 is open for 2 NBD clients"; "": nobody uses it.
std::string use_of(const std::string& root, const CtlJson& device) {
  const std::string name = device["mapping_path"].is_string() ? device["mapping_path"] : "";
  if (device["devname"].is_string()) {
    const std::string kernel = device["devname"];
    const std::string users = users_of(root, kernel);
    return name + " is /dev/" + kernel + (users.empty() ? "" : ", " + users);
  }
  const CtlJson& users = device["users"];
  if (!users.is_number_unsigned() || users == 0U) return "";
  return name + " is open for " + users.dump() + (users == 1U ? " NBD client" : " NBD clients");
}

/// "" or who uses sessions that would have no path any more.
std::string complaint_about_users(const std::string& root, const std::vector<CtlReport>& cut_off) {
  const auto kernel_devices = find_kernel_devices(root);
  std::string text;
  for (const CtlReport& report : cut_off) {
    for (const CtlJson& device :
         take_inventory({report}, kernel_devices, CtlSide::client).devices) {
      if (!is_of_program(device, report)) continue;  // a disk of somebody else
      const std::string use = use_of(root, device);
      if (!use.empty()) text += (text.empty() ? "" : "; ") + use;
    }
  }
  if (text.empty()) return "";
  return "no path would be left for what is in use: " + readable_text(text) +
         "; end that first, or write --force: then its requests wait until `rnbd-ctl reconnect`, "
         "and fail after no-path-timeout";
}

/// Others say what they connect.
bool takes_away(CtlVerb verb) {
  return verb == CtlVerb::remove || verb == CtlVerb::disconnect || verb == CtlVerb::close;
}

// ---- What comes of it ---------------------------------------------------------------------------

std::string name_of(const CtlAwaited& path) {
  return readable_text("path " + path.path + " of session " + path.session);
}

CtlPathNews look_at(const CtlAwaited& path) {
  std::string trouble;
  const CtlJson status = ask_program(path.socket, "status", trouble);
  return status.is_null() ? CtlPathNews{CtlProgress::gone, trouble}
                          : news_of_path(status, path.path);
}

/// True: there is nothing more to wait for.
bool has_ended(const CtlPathNews& news) { return news.progress != CtlProgress::under_way; }

std::string failed(const CtlAwaited& path, const CtlPathNews& news) {
  const std::string why = news.trouble.empty() ? "" : ": " + readable_text(news.trouble);
  if (news.progress == CtlProgress::gone) return name_of(path) + " is gone" + why;
  return name_of(path) + " is not connected yet" + why +
         "; it is tried again, and `rnbd-ctl list paths` tells how far it is";
}

/// The wait ends when all are connected, or the time is over.
CtlOutcome await(const std::vector<CtlAwaited>& paths, double seconds) {
  CtlOutcome outcome;
  for (const CtlAwaited& path : paths) say(name_of(path) + ": connecting\n");
  if (seconds <= 0 || !is_written()) return outcome;
  const auto limit = steady_clock::now() + std::chrono::duration<double>(seconds);
  for (const CtlAwaited& path : paths) {
    CtlPathNews news = look_at(path);
    while (!has_ended(news) && steady_clock::now() < limit) {
      std::this_thread::sleep_for(kLookAtPathEvery);
      news = look_at(path);
    }
    if (news.progress == CtlProgress::connected) {
      outcome.out += name_of(path) + ": connected\n";
    } else if (news.progress == CtlProgress::idle && news.trouble.empty()) {
      outcome.out += name_of(path) + ": idle, it connects when somebody opens a device\n";
    } else {
      add_complaints({failed(path, news)}, outcome);
    }
  }
  return outcome;
}

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

std::string told_of(const CtlStep& step, const std::vector<CtlReport>& reports,
                    const CtlJson& answer) {
  const CtlReport* const report = report_of(step, reports);
  if (report == nullptr) return "";
  const std::string session = path_told_by(step, {"evict"});
  if (!session.empty()) return told_of_eviction(session, *report, answer);
  const std::string removed = path_told_by(step, {"remove-path"});
  const std::string closed = path_told_by(step, {"disconnect"});
  if (removed.empty() && closed.empty()) return "";
  const std::string name = said_text(report->status, "session");
  const std::string path = removed.empty() ? closed : removed;
  if (is_server(*report))
    return "path " + path + ": closed; its client may connect it again by itself";
  return "path " + path + " of session " + (name.empty() ? report->program.name : name) +
         (removed.empty() ? ": out of service until reconnect or recover" : ": deleted");
}

std::vector<CtlAwaited> awaited_paths(const std::vector<CtlStep>& steps,
                                      const std::vector<CtlReport>& reports) {
  std::vector<CtlAwaited> awaited;
  for (const CtlStep& step : steps) {
    const std::string path = path_told_by(step, {"add-path", "reconnect"});
    const CtlReport* const its = report_of(step, reports);
    if (path.empty() || its == nullptr) continue;
    const std::string session = said_text(its->status, "session");
    awaited.push_back({step.socket, session.empty() ? its->program.name : session, path});
  }
  return awaited;
}

CtlPathNews news_of_path(const CtlJson& status, const std::string& path) {
  for (const CtlJson& each : said_list(status, "paths")) {
    const std::string address = said_text(each, "address"), state = said_text(each, "state");
    if (without_preference(address) != without_preference(path)) continue;
    return {state == "connected" ? CtlProgress::connected
            : state == "idle"    ? CtlProgress::idle
                                 : CtlProgress::under_way,
            said_text(each, "trouble")};
  }
  return {};
}

std::vector<CtlReport> cut_off_by(const std::vector<CtlStep>& steps,
                                  const std::vector<CtlReport>& reports) {
  std::vector<CtlReport> cut_off;
  for (const CtlReport& report : reports) {
    const auto is_taken = [&](const CtlJson& path) {
      return std::ranges::any_of(steps, [&](const CtlStep& step) {
        return step.socket == report.program.socket &&
               path_told_by(step, {"disconnect"}) == said_text(path, "address");
      });
    };
    const CtlJson& paths = said_list(report.status, "paths");
    const auto stays = [&](const CtlJson& path) {
      return said_text(path, "state") == "connected" && !is_taken(path);
    };
    if (std::ranges::any_of(paths, is_taken) && std::ranges::none_of(paths, stays)) {
      cut_off.push_back(report);
    }
  }
  return cut_off;
}

std::vector<CtlJson> closed_devices(const std::string& name, const std::vector<CtlReport>& reports,
                                    const std::vector<KernelDevice>& kernel_devices) {
  std::vector<CtlJson> closed = take_inventory(reports, kernel_devices, CtlSide::client).devices;
  std::erase_if(closed, [&](const CtlJson& row) {
    const auto is_called = [&](const char* field) { return row[field] == name; };
    const bool meant =
        name == "all" || std::ranges::any_of(
                             std::initializer_list<const char*>{
                                 "program", "sessname", "mapping_path", "devname", "devpath"},
                             is_called);
    return !meant || row["state"] != "closed";
  });
  return closed;
}

std::string remedy_for_closed(const CtlJson& row) {
  const std::string trouble = said_text(row, "trouble");
  if (!row["devname"].is_string()) return trouble;
  return trouble + "; unmount it, then write rnbd-ctl remap " + said_text(row, "program");
}

std::vector<std::string> told_of_closed(const std::vector<CtlJson>& rows) {
  std::vector<std::string> sentences;
  for (const CtlJson& row : rows) {
    const bool of_kernel = row["devname"].is_string();
    sentences.push_back(said_text(row, of_kernel ? "devname" : "mapping_path") +
                        " is closed: " + remedy_for_closed(row) +
                        (of_kernel ? "" : "; its NBD clients have to connect anew"));
  }
  return sentences;
}

std::vector<CtlReport> reports_of(const std::vector<CtlStep>& steps,
                                  const std::vector<CtlReport>& reports) {
  std::vector<CtlReport> its = reports;
  std::erase_if(its, [&](const CtlReport& report) {
    return std::ranges::find(steps, report.program.socket, &CtlStep::socket) == steps.end();
  });
  return its;
}

CtlOutcome steer(const CtlAction& action) {
  const auto patience = seconds_to_wait(action, kUsualWait);
  if (!patience) return {2, "", patience.error()};
  const CtlReports reports = ask_all(action.root);
  for (const std::string& silent : reports.silent) complain(silent);
  const auto steps = steps_of(action, reports.all, find_kernel_devices(action.root));
  if (!steps) return {1, "", steps.error()};
  if (action.verb == CtlVerb::disconnect && !action.force) {
    const std::string users = complaint_about_users(action.root, cut_off_by(*steps, reports.all));
    if (!users.empty()) return {1, "", users};
  }
  std::string told;
  for (const CtlStep& step : *steps) {
    // The first one that fails ends the rest.
    const auto answer = take(step);
    if (!answer) return {1, told, answer.error()};
    const std::string news = takes_away(action.verb) ? told_of(step, reports.all, *answer) : "";
    if (!news.empty()) told += readable_text(news) + "\n";
  }
  if (steps->empty()) return {0, "all paths are connected already\n", ""};
  CtlOutcome outcome = await(awaited_paths(*steps, reports.all), *patience);
  outcome.out = told + outcome.out;
  if (action.verb == CtlVerb::reconnect) {
    const auto now = reports_of(*steps, ask_all(action.root).all);
    add_complaints(told_of_closed(closed_devices("all", now, find_kernel_devices(action.root))),
                   outcome);
  }
  if (!reports.silent.empty()) outcome.status = 1;
  return outcome;
}

}  // namespace rnbd
