// SPDX-License-Identifier: BSD-3-Clause
// The effects of steps on paths: which ones connect, how far they are, and who has none any more.
#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/steering.hpp"

namespace rnbd {
namespace {

/// A word behind the first one, if that is one of these.
std::string path_told_by(const CtlStep& step, std::initializer_list<std::string_view> commands) {
  const std::size_t blank = std::min(step.line.find(' '), step.line.size());
  const bool told =
      std::ranges::find(commands, std::string_view{step.line}.substr(0, blank)) != commands.end();
  return told ? step.line.substr(std::min(blank + 1, step.line.size())) : "";
}

std::string said_in(const CtlJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Without a preference, which an address may tell or not.
std::string without_preference(const std::string& path) {
  return path.substr(0, std::min(path.find(','), path.size()));
}

const CtlJson& things_in(const CtlJson& status, const char* kind) {
  static const CtlJson none = CtlJson::array();
  const auto found = status.find(kind);
  return found != status.end() && found->is_array() ? *found : none;
}

const CtlJson& paths_in(const CtlJson& status) { return things_in(status, "paths"); }

const CtlReport* report_of(const CtlStep& step, const std::vector<CtlReport>& reports) {
  const auto its = std::ranges::find_if(
      reports, [&](const CtlReport& report) { return report.program.socket == step.socket; });
  return its != reports.end() ? &*its : nullptr;
}

/// Devices that a session at a server may have written to: "disk0, disk1".
std::string written_by(const std::string& session, const CtlReport& report) {
  std::string text;
  for (const CtlJson& device : things_in(report.status, "devices")) {
    const std::string access = said_in(device, "access_mode");
    const bool reads = access == "ro" || access == "unclaimed";
    if (said_in(device, "session") != session || reads) continue;
    text += (text.empty() ? "" : ", ") + said_in(device, "device");
  }
  return text;
}

/// "rnbd-ctl server readmit host1" for each client that is out by this answer.
std::string lets_in_again(const CtlJson& answer, const std::string& program) {
  std::string text;
  for (const CtlJson& out : things_in(answer, "evicted")) {
    text +=
        (text.empty() ? "" : " and ") + ("rnbd-ctl " + program) + ' ' + said_in(out, "let_in_by");
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

}  // namespace

std::string told_of(const CtlStep& step, const std::vector<CtlReport>& reports,
                    const CtlJson& answer) {
  const CtlReport* const report = report_of(step, reports);
  if (report == nullptr) return "";
  const std::string session = path_told_by(step, {"evict"});
  if (!session.empty()) return told_of_eviction(session, *report, answer);
  const bool at_server = report->status.contains("sessions");
  const std::string removed = path_told_by(step, {"remove-path"});
  const std::string closed = path_told_by(step, {"disconnect"});
  if (removed.empty() && closed.empty()) return "";
  const std::string name = said_in(report->status, "session");
  const std::string path = removed.empty() ? closed : removed;
  if (at_server) return "path " + path + ": closed; its client may connect it again by itself";
  return "path " + path + " of session " + (name.empty() ? report->program.name : name) +
         (removed.empty() ? ": out of service until reconnect or recover" : ": deleted");
}

std::vector<CtlAwaited> awaited_paths(const std::vector<CtlStep>& steps,
                                      const std::vector<CtlReport>& reports) {
  std::vector<CtlAwaited> awaited;
  for (const CtlStep& step : steps) {
    const std::string path = path_told_by(step, {"add-path", "reconnect"});
    const auto its = std::ranges::find_if(
        reports, [&](const CtlReport& report) { return report.program.socket == step.socket; });
    if (path.empty() || its == reports.end()) continue;
    const std::string session = said_in(its->status, "session");
    awaited.push_back({step.socket, session.empty() ? its->program.name : session, path});
  }
  return awaited;
}

CtlPathNews news_of_path(const CtlJson& status, const std::string& path) {
  for (const CtlJson& each : paths_in(status)) {
    const std::string address = said_in(each, "address"), state = said_in(each, "state");
    if (without_preference(address) != without_preference(path)) continue;
    return {state == "connected" ? CtlProgress::connected
            : state == "idle"    ? CtlProgress::idle
                                 : CtlProgress::under_way,
            said_in(each, "trouble")};
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
               path_told_by(step, {"disconnect"}) == said_in(path, "address");
      });
    };
    const CtlJson& paths = paths_in(report.status);
    const auto stays = [&](const CtlJson& path) {
      return said_in(path, "state") == "connected" && !is_taken(path);
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
  const std::string trouble = said_in(row, "trouble");
  if (!row["devname"].is_string()) return trouble;
  return trouble + "; unmount it, then write rnbd-ctl remap " + said_in(row, "program");
}

std::vector<std::string> told_of_closed(const std::vector<CtlJson>& rows) {
  std::vector<std::string> sentences;
  for (const CtlJson& row : rows) {
    const bool of_kernel = row["devname"].is_string();
    sentences.push_back(said_in(row, of_kernel ? "devname" : "mapping_path") +
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

}  // namespace rnbd
