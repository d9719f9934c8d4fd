// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/check.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "bridge/ctl/annexes.hpp"
#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/shared_bridge.hpp"
#include "bridge/ctl/steering.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// Nagios waits for 10 s. There may be a second question, that of an annex.
constexpr std::chrono::seconds kCheckPatience{4};

/// Programs of monitoring look every few minutes, and people look at what these tell.
constexpr std::chrono::minutes kRecent{15};

struct Finding {
  CtlHealth health;
  std::string kind, name, text;
  std::string cause = {};  ///< others with the same one are told together; "": it stands alone
};

/// More findings of one cause are one line for people.
constexpr std::size_t kMostAlike = 3;

/// The words behind the path of the storage, which all that wait for the same thing have.
std::string cause_of(const std::string& trouble) {
  const std::size_t end = trouble.starts_with('/') ? trouble.find(": ") : std::string::npos;
  return end == std::string::npos ? "" : trouble.substr(end + 2);
}

std::string word_of(CtlHealth health) {
  return std::array{"OK", "WARNING", "CRITICAL", "UNKNOWN"}.at(static_cast<std::size_t>(health));
}

/// Critical outweighs a warning, and both outweigh unknown.
int weight_of(CtlHealth health) {
  return std::array{0, 2, 3, 1}.at(static_cast<std::size_t>(health));
}

class Examiner {
 public:
  Examiner(const CtlAction& action, const CtlReports& reports,
           const std::vector<KernelDevice>& kernel_devices, const CtlExpected& expected)
      : action_{action},
        reports_{reports},
        inventory_{take_inventory(reports.all, kernel_devices, action.side)},
        expected_{expected},
        mappings_{expected.mappings} {
    for (const CtlReport& report : reports.all) {
      if (is_server(report)) continue;
      served_.insert(report.program.name);
      for (const CtlJson& disk : disks_in(report.status)) served_.insert(said_text(disk, "disk"));
    }
    for (const CtlJson& row : inventory_.devices) {
      if (row["devname"].is_string()) in_kernel_.insert(said_text(row, "program"));
    }
  }

  CtlVerdict judge() {
    for (const CtlReport& report : reports_.all) examine(report);
    if (action_.side != CtlSide::server) {
      for (const CtlJson& device : inventory_.devices) examine_device(device);
      for (const CtlReport& report : reports_.all) examine_disks(report);
      for (const auto& [name, process] : mappings_) examine_mapping(name);
      for (const MountWithoutDisk& mount : expected_.without_disk) examine_mount(mount);
    }
    for (const CtlProgram& program : reports_.ended) examine_ended(program);
    for (const CtlProgram& program : reports_.hung) examine_hung(program);
    for (const std::string& silent : reports_.silent) {
      if (is_of_hung(silent)) continue;
      find(CtlHealth::unknown, "program", silent.substr(0, silent.find(':')), silent);
    }
    for (const std::string& name : action_.names) {
      if (!met_.contains(name)) find(CtlHealth::unknown, "name", name, "nothing is called " + name);
    }
    if (action_.names.empty()) examine_hidden();
    const bool looked = !action_.names.empty() || may_look();
    if (action_.names.empty() && looked && seen_ == 0 && reports_.silent.empty()) judge_silence();
    std::ranges::stable_sort(findings_, [](const Finding& a, const Finding& b) {
      return weight_of(a.health) > weight_of(b.health);
    });
    const CtlHealth health = findings_.empty() ? CtlHealth::ok : findings_.front().health;
    return {health, action_.format == CtlFormat::json ? as_json(health) : as_text(health)};
  }

 private:
  void find(CtlHealth health, std::string kind, std::string name, std::string text,
            std::string cause = {}) {
    findings_.push_back(
        {health, std::move(kind), std::move(name), std::move(text), std::move(cause)});
  }

  bool is_of_side(const HiddenProgram& each) const {
    return action_.side == CtlSide::both || each.server == (action_.side == CtlSide::server);
  }

  /// Anything may be wrong where this user may not look.
  bool may_look() {
    bool may = true;
    for (const CtlClosedFolder& each : reports_.closed) {
      if (each.of_server && action_.side == CtlSide::client) continue;
      find(CtlHealth::unknown, "program", "", text_about(each));
      may = false;
    }
    return may;
  }

  /// The exports of such a server are not known, nor the disks of such a bridge, which may be of no
  /// interest here. A plugin may do without a socket.
  void examine_hidden() {
    for (const HiddenProgram& each : reports_.hidden) {
      if (!is_of_side(each)) continue;
      if (each.server) find(CtlHealth::unknown, "program", "", each.text);
      if (each.is_bridge) find(CtlHealth::warning, "program", "", each.text);
    }
  }

  /// Nothing is here. A client without disks is well; a server, or a program that cannot be asked,
  /// would be another matter.
  void judge_silence() {
    const bool serves =
        action_.side == CtlSide::server || (expected_.server && action_.side != CtlSide::client);
    idle_ = !serves && std::ranges::none_of(reports_.hidden, [this](const HiddenProgram& each) {
      return is_of_side(each);
    });
    if (idle_) return;
    find(CtlHealth::unknown, "program", "",
         serves ? "no server runs here that can be asked"
                : "no program runs here that can be asked");
    for (const HiddenProgram& each : reports_.hidden) {
      if (each.server || each.is_bridge || !is_of_side(each)) continue;
      find(CtlHealth::unknown, "program", "", each.text);
    }
  }

  /// True: the command is about a thing of these names.
  bool is_meant(std::initializer_list<std::string> names) {
    const bool meant = is_named(names);
    if (meant) ++seen_;
    return meant;
  }
  /// The same for a thing that does not run.
  bool is_named(std::initializer_list<std::string> names) {
    bool meant = action_.names.empty();
    for (const std::string& name : names) {
      if (name.empty() || std::ranges::find(action_.names, name) == action_.names.end()) continue;
      met_.insert(name);
      meant = true;
    }
    return meant;
  }

  void examine(const CtlReport& report) {
    if (is_server(report)) {
      if (action_.side != CtlSide::client) examine_server(report);
    } else if (action_.side != CtlSide::server) {
      examine_session(report);
    }
  }

  // ---- Clients ----------------------------------------------------------------------------------

  void examine_session(const CtlReport& report) {
    const auto row = std::ranges::find_if(inventory_.sessions, [&](const CtlJson& each) {
      return each["program"] == report.program.name && each["direction"] == "import";
    });
    if (row == inventory_.sessions.end()) return;
    const std::string session = said_text(*row, "sessname"), program = report.program.name;
    const bool by_device =
        std::ranges::any_of(said_list(report.status, "devices"),
                            [&](const CtlJson& device) {
                              return std::ranges::find(action_.names,
                                                       said_text(device, "device")) !=
                                     action_.names.end();
                            }) ||
        std::ranges::any_of(disks_in(report.status), [&](const CtlJson& disk) {
          return std::ranges::find(action_.names, said_text(disk, "disk")) != action_.names.end();
        });
    const bool named = is_meant({session, program});
    if (!named && !by_device) return;
    ++sessions_;
    examine_listeners(report);
    examine_limits(report);
    const std::string name = session.empty() ? program : session;
    if (said_text(*row, "state") == "idle") return;
    const std::uint64_t up = said_number(*row, "act_path_cnt"), all = said_number(*row, "path_cnt");
    paths_ += all;
    paths_up_ += up;
    const std::string trouble = said_text(*row, "trouble");
    const std::string why = trouble.empty() ? "" : ": " + trouble;
    if (up == 0 || trouble.starts_with("no path")) {
      find(CtlHealth::critical, "session", name,
           trouble.starts_with("no path") ? trouble : "no path" + why);
    } else if (up < all) {
      find(CtlHealth::warning, "session", name,
           std::to_string(up) + " of " + std::to_string(all) + " paths" + troubles_of(report));
    } else if (!trouble.empty()) {
      find(CtlHealth::warning, "session", name, trouble);
    }
    for (const CtlAnnex* annex : ctl_annexes()) {
      const auto answer = report.status.find(annex->name);
      if (annex->judge == nullptr || answer == report.status.end()) continue;
      const std::string kind{annex->name};
      for (CtlConcern& each : annex->judge(*answer))
        find(each.health, kind, name, std::move(each.text));
    }
  }

  /// " (tcp:10.0.0.1:1234: Connection refused)"
  static std::string troubles_of(const CtlReport& report) {
    std::string text;
    for (const CtlJson& path : said_list(report.status, "paths")) {
      if (said_text(path, "state") == "connected") continue;
      const std::string trouble = said_text(path, "trouble");
      text += (text.empty() ? " (" : "; ") + said_text(path, "address") + ": " +
              (trouble.empty() ? said_text(path, "state") : trouble);
    }
    return text + (text.empty() ? "" : ")");
  }

  void examine_device(const CtlJson& device) {
    if (device["direction"] != "import" || said(device, "unserved") == true) return;
    const std::string name = said_text(device, "mapping_path"),
                      kernel = said_text(device, "devname"), program = said_text(device, "program");
    if (!is_meant({name, kernel, said_text(device, "devpath"), said_text(device, "uuid"), program,
                   said_text(device, "sessname")})) {
      return;
    }
    ++devices_;
    const std::string state = said_text(device, "state"), trouble = said_text(device, "trouble");
    const std::string called = kernel.empty() ? name : kernel;
    for (const MissingMount& mount : expected_.unmounted) {
      if (mount.device != kernel) continue;
      find(CtlHealth::warning, "mount", mount.point,
           "/etc/fstab has it for " + kernel + ", and it is not mounted; write mount " +
               mount.point);
    }
    if (state == "closed") {
      find(CtlHealth::critical, "device", called, remedy_for_closed(device));
    } else if (state == "waiting") {
      find(CtlHealth::critical, "device", called, "its requests wait, " + trouble);
    } else if (state == "shrunk") {
      find(CtlHealth::critical, "device", called, trouble);
    } else if (state == "recovering") {
      find(CtlHealth::warning, "device", called,
           "it recovers: the bridge of " + program + " has not opened its device yet" +
               (trouble.empty() ? "" : ", " + trouble));
    } else if (state == "unattended") {
      find(CtlHealth::critical, "device", called,
           hangs(program) ? "its bridge hangs: no answer for " + seconds_of_check()
           : mappings_.contains(program)
               ? "no bridge runs for it; write rnbd-ctl recover " + program
               : "it is left of '" + program +
                     "', without a bridge and without a mapping, as after unmap --force; unmount "
                     "it, and it goes, else write rnbd-ctl unmap " +
                     program);
    }
  }

  /// The disks that a bridge does not serve. One that the kernel has recovers as a device, unless
  /// the bridge refuses it.
  void examine_disks(const CtlReport& report) {
    for (const CtlJson& disk : disks_in(report.status)) {
      const std::string name = said_text(disk, "disk"), state = said_text(disk, "state"),
                        trouble = said_text(disk, "trouble");
      const bool well = state == "serving" || state == "connecting" || state == "leaving";
      if ((in_kernel_.contains(name) && state != "refused") || !is_meant({name}) || well) continue;
      find(CtlHealth::critical, "device", name,
           state == "waiting" ? "it is tried again and again: " + trouble
           : trouble.find("rnbd-ctl ") != std::string::npos
               ? trouble  // it has advice of its own
               : trouble + "; write rnbd-ctl recover " + name + " to try it again");
    }
  }

  /// A disk that is to be there. One that the kernel has is a device.
  void examine_mapping(const std::string& name) {
    const bool known = served_.contains(name) || in_kernel_.contains(name);
    if (known || hangs(name) || !is_meant({name})) return;
    find(CtlHealth::critical, "device", name,
         "it is mapped, but no bridge runs for it; write rnbd-ctl recover " + name);
  }

  /// The next boot lacks its disk.
  void examine_mount(const MountWithoutDisk& mount) {
    if (!is_named({mount.link, mount.mapping, mount.point})) return;
    const std::string line = "/etc/fstab has a line for " + mount.link +
                             (mount.awaited ? ", which each boot awaits" : "");
    find(CtlHealth::warning, "mount", mount.point.starts_with('/') ? mount.point : mount.link,
         mount.keep.empty()
             ? line +
                   ", and nothing is mapped as that; remove the line, or write rnbd-ctl map "
                   "DEVICE from SERVER" +
                   (mount.mapping.empty() ? "" : " --name " + mount.mapping) + " --persist"
             : line + ", but the disk is mapped until the next boot only; write " + mount.keep);
  }

  // ---- Programs that were killed, or hang -------------------------------------------------------

  /// The folder of a socket tells what its program is or was.
  struct Kind {
    bool server, bridge, mapped;
    const char* name;
  };
  static Kind kind_of(const CtlProgram& program) {
    const std::filesystem::path folder = std::filesystem::path{program.socket}.parent_path();
    const bool server = folder.filename() == "rnbd-server",
               mapped = folder.filename() == "map" && folder.parent_path().filename() == "rnbd",
               bridge = mapped || folder.parent_path().filename() == "rnbd-bridge";
    return {server, bridge, mapped,
            server   ? "rnbd-server"
            : bridge ? "rnbd-bridge"
                     : "the program"};
  }
  bool is_of_other_side(const Kind& kind) const {
    return (kind.server && action_.side == CtlSide::client) ||
           (kind.bridge && action_.side == CtlSide::server);
  }

  static std::string seconds_of_check() { return std::to_string(kCheckPatience.count()) + " s"; }
  bool hangs(const std::string& program) const {
    const auto found = mappings_.find(program);
    const std::string& process = found != mappings_.end() ? found->second : program;
    return std::ranges::find(reports_.hung, process, &CtlProgram::name) != reports_.hung.end();
  }
  bool is_of_hung(const std::string& silent) const {
    return std::ranges::any_of(reports_.hung, [&](const CtlProgram& program) {
      return silent.starts_with(program.socket + ": ");
    });
  }

  void examine_hung(const CtlProgram& program) {
    const Kind kind = kind_of(program);
    if (is_of_other_side(kind) || !is_meant({program.name})) return;
    find(CtlHealth::critical, "program", program.name,
         std::string{kind.name} + " of " + program.socket + " hangs: no answer for " +
             seconds_of_check());
  }

  /// A disk of the kernel tells it itself, and a socket of one that was unmapped since means
  /// nothing.
  void examine_ended(const CtlProgram& program) {
    const Kind kind = kind_of(program);
    const bool is_disk = mappings_.contains(program.name) || in_kernel_.contains(program.name);
    if (is_of_other_side(kind) || is_disk || kind.mapped) return;
    if (!is_meant({program.name})) return;
    find(CtlHealth::critical, "program", program.name,
         std::string{kind.name} + " of " + program.socket + " does not answer: it has ended");
  }

  // ---- Servers ----------------------------------------------------------------------------------

  /// Exports of several servers may have the same name.
  std::string which_server(const CtlReport& report) const {
    return std::ranges::count_if(reports_.all, is_server) > 1
               ? "at the server of " + report.program.socket + ": "
               : "";
  }

  void examine_server(const CtlReport& report) {
    const std::string program = report.program.name;
    const bool all = is_meant({program});
    std::set<std::string> exports;
    for (const CtlJson& each : said_list(report.status, "exports")) {
      const std::string name = said_text(each, "export"), trouble = said_text(each, "trouble");
      if (!all && !is_meant({name})) continue;
      ++exports_;
      exports.insert(name);
      const std::string state = said_text(each, "state");
      const bool serves = state == "shrunk" || state == "displaced";
      if (state != "waiting" && !serves && trouble.empty()) continue;
      // No client can have written to it.
      const bool harmless =
          state == "displaced" && each.contains("read_only") && each["read_only"] == true;
      find(harmless ? CtlHealth::warning : CtlHealth::critical, "export", name,
           which_server(report) +
               (serves ? trouble
                       : "it waits for its storage" + (trouble.empty() ? "" : ": " + trouble)),
           serves ? "" : cause_of(trouble));
    }
    examine_space(report, exports);
    examine_failures(report, exports);
    count_clients(report.status, all, exports);
    if (!all) return;
    examine_listeners(report);
    examine_limits(report);
    for (const char* part : {"search_path", "certificates"}) {
      const std::string trouble = said_text(report.status, part);
      if (!trouble.empty()) find(CtlHealth::warning, part, program, trouble);
    }
  }

  /// Writes into the holes of a file need room, which is shared by all files of a file system. Of
  /// these the one is told that may take most.
  void examine_space(const CtlReport& report, const std::set<std::string>& exports) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<const CtlJson*>> full;
    for (const CtlJson& each : said_list(report.status, "exports")) {
      const auto space = each.find("space");
      if (space == each.end() || !exports.contains(said_text(each, "export"))) continue;
      const std::uint64_t free = said_number(*space, "free"), whole = said_number(*space, "whole");
      if (said_number(*space, "unallocated") == 0 || free >= whole / 10) continue;
      full[{whole, free}].push_back(&each);
    }
    const auto unallocated = [](const CtlJson* each) {
      return said_number(each->at("space"), "unallocated");
    };
    for (const auto& [system, files] : full) {
      const auto [whole, free] = system;
      const CtlJson& most = **std::ranges::max_element(files, {}, unallocated);
      const std::size_t others = files.size() - 1;
      find(free < whole / 100 * 3 ? CtlHealth::critical : CtlHealth::warning, "export",
           said_text(most, "export"),
           which_server(report) + "its file system has " + size_text(free) + " left of " +
               size_text(whole) + ", and its file may take " + size_text(unallocated(&most)) +
               " yet" +
               (others > 0 ? "; so may those of other exports (" + std::to_string(others) + ")"
                           : "") +
               "; make room, or writes end with ENOSPC");
    }
  }

  /// A storage that fails may do so again, or has lost data: its clients were told, but nobody
  /// else.
  void examine_failures(const CtlReport& report, const std::set<std::string>& exports) {
    for (const CtlJson& each : said_list(report.status, "last_failures")) {
      const std::string name = said_text(each, "failed");
      const std::uint64_t ago = said_number(each, "seconds_ago");
      const bool recent = ago < std::uint64_t{std::chrono::seconds{kRecent}.count()};
      // Files of the search path have no row.
      if (!recent || (!exports.contains(name) && !is_meant({name, report.program.name}))) continue;
      find(CtlHealth::warning, "export", name,
           which_server(report) + "its storage failed a " + said_text(each, "operation") +
               " with " + said_text(each, "errno") + " " + std::to_string(ago) + " s ago, at " +
               said_text(each, "at") + "; see to it, and to the log of the server");
    }
  }

  /// Those that come later are turned away when the rest is taken. The nearest limit comes first. A
  /// session takes memory with each of its paths: one of the two limits ends it all.
  void examine_limits(const CtlReport& report) {
    CtlJson near = CtlJson::array();
    for (const CtlJson& each : said_list(report.status, "limits")) {
      const std::uint64_t used = said_number(each, "used"), most = said_number(each, "most");
      if (most != 0 && used >= most - most / 10) near.push_back(each);
    }
    const auto share = [](const CtlJson& each) {
      return static_cast<double>(said_number(each, "used")) /
             static_cast<double>(said_number(each, "most"));
    };
    std::stable_sort(near.begin(), near.end(),
                     [&](const CtlJson& a, const CtlJson& b) { return share(a) > share(b); });
    const auto place_of = [&](const char* name) {
      return std::ranges::find_if(
          near, [&](const CtlJson& each) { return said_text(each, "limit") == name; });
    };
    const auto sessions = place_of("max-sessions"), memory = place_of("memory-limit");
    const bool both = sessions != near.end() && memory != near.end();
    const auto second = both ? std::max(sessions, memory) : near.end();
    for (auto each = near.begin(); each != near.end(); ++each) {
      if (each == second) continue;
      const bool of_both = both && each == std::min(sessions, memory);
      tell_of_limit(report, *each, of_both ? said_text(*second, "limit") : "");
    }
  }

  /// `beside`: the limit that goes with it; "": none.
  void tell_of_limit(const CtlReport& report, const CtlJson& limit, const std::string& beside) {
    const std::string name = said_text(limit, "limit");
    const bool of_server = is_server(report), of_unit = name == "LimitNOFILE" || name == "TasksMax";
    find(CtlHealth::warning, "limit", name,
         (of_server ? which_server(report) : "at the bridge of " + report.program.name + ": ") +
             std::to_string(said_number(limit, "used")) + " of " +
             std::to_string(said_number(limit, "most")) +
             " are used, and clients beyond are refused; raise " +
             (of_server || of_unit ? "" : "--") + name + (of_unit ? " of the unit" : "") +
             (beside.empty() ? ""
                             : " and " + beside +
                                   ", which is nearly used, too: each path of a session takes its "
                                   "part of memory-limit") +
             (of_server ? ", or see who is there: rnbd-ctl server list sessions" : ""));
  }

  void examine_listeners(const CtlReport& report) {
    for (const CtlJson& each : said_list(report.status, "listeners")) {
      if (said_text(each, "state") != "waiting") continue;
      find(CtlHealth::warning, "listener", said_text(each, "listener"),
           "it waits: " + said_text(each, "trouble"));
    }
  }

  /// The sessions that clients have here, their paths and what they have open, as `server list` has
  /// them. A client that is away is no trouble of the server.
  void count_clients(const CtlJson& status, bool all, const std::set<std::string>& exports) {
    std::set<std::string> sessions;
    for (const CtlJson& session : said_list(status, "sessions")) {
      const std::string name = said_text(session, "session");
      if (all || is_meant({name})) sessions.insert(name);
    }
    for (const CtlJson& device : said_list(status, "devices")) {
      const std::string session = said_text(device, "session");
      const bool by_export = exports.contains(said_text(device, "device"));
      if (by_export || sessions.contains(session)) ++devices_;
      if (by_export) sessions.insert(session);
    }
    for (const CtlJson& path : said_list(status, "paths")) {
      if (!sessions.contains(said_text(path, "session"))) continue;
      ++paths_;
      if (said_text(path, "state") == "connected") ++paths_up_;
    }
    sessions_ += static_cast<std::uint64_t>(std::ranges::count_if(
        said_list(status, "sessions"),
        [&](const CtlJson& session) { return sessions.contains(said_text(session, "session")); }));
  }

  // ---- The verdict ------------------------------------------------------------------------------

  std::uint64_t count(CtlHealth health) const {
    return static_cast<std::uint64_t>(std::ranges::count(findings_, health, &Finding::health));
  }

  /// "RNBD WARNING - 1 warning; 1 session, 1 of 2 paths, 1 device, 0 exports | sessions=1 ..."
  std::string as_text(CtlHealth health) const {
    const auto many = [](std::uint64_t number, const std::string& what) {
      return std::to_string(number) + ' ' + what + (number == 1 ? "" : "s");
    };
    std::string line = "RNBD " + word_of(health) + " - ";
    for (const auto& [each, what] : {std::pair{CtlHealth::critical, "critical"},
                                     {CtlHealth::warning, "warning"},
                                     {CtlHealth::unknown, "unknown"}}) {
      if (count(each) > 0) line += std::to_string(count(each)) + ' ' + what + ", ";
    }
    if (idle_) line += "no disks are mapped, ";
    line += many(sessions_, "session") + ", " + std::to_string(paths_up_) + " of " +
            many(paths_, "path") + " up, " + many(devices_, "device") + ", " +
            many(exports_, "export");
    const CtlJson numbers = counts();
    for (const auto& [name, number] : numbers.items()) {
      line += (name == "sessions" ? " | " : " ") + name + "=" + number.dump();
    }
    std::string text = line + "\n";
    std::set<std::string> together;
    for (const Finding& finding : findings_) {
      std::string name = finding.name.empty() ? "" : finding.kind + " " + finding.name + ": ";
      const bool alike = count_alike(finding) > kMostAlike;
      if (alike && !together.insert(finding.cause).second) continue;
      if (alike) name = names_alike(finding);
      std::string told = readable_text(word_of(finding.health) + ": " + name +
                                       (alike ? finding.cause : finding.text));
      std::ranges::replace(told, '|', '/');  // numbers for graphs follow that one
      text += told + "\n";
    }
    return text;
  }

  bool is_alike(const Finding& one, const Finding& other) const {
    return one.health == other.health && one.kind == other.kind && one.cause == other.cause;
  }
  std::size_t count_alike(const Finding& finding) const {
    if (finding.cause.empty()) return 1;
    return static_cast<std::size_t>(std::ranges::count_if(
        findings_, [&](const Finding& each) { return is_alike(each, finding); }));
  }
  /// "92 exports (a, b, c and 89 more): "
  std::string names_alike(const Finding& finding) const {
    std::string names;
    std::size_t told = 0;
    for (const Finding& each : findings_) {
      if (told == kMostAlike || !is_alike(each, finding)) continue;
      names += (told++ == 0 ? "" : ", ") + each.name;
    }
    const std::size_t all = count_alike(finding);
    return std::to_string(all) + " " + finding.kind + "s (" + names + " and " +
           std::to_string(all - told) + " more): ";
  }

  CtlJson counts() const {
    return {{"sessions", sessions_},
            {"paths", paths_},
            {"paths_up", paths_up_},
            {"devices", devices_},
            {"exports", exports_},
            {"critical", count(CtlHealth::critical)},
            {"warning", count(CtlHealth::warning)},
            {"unknown", count(CtlHealth::unknown)}};
  }

  std::string as_json(CtlHealth health) const {
    CtlJson all{{"status", word_of(health)},
                {"code", static_cast<int>(health)},
                {"counts", counts()},
                {"findings", CtlJson::array()}};
    for (const Finding& finding : findings_) {
      all["findings"].push_back({{"status", word_of(finding.health)},
                                 {"kind", finding.kind},
                                 {"name", finding.name},
                                 {"text", finding.text}});
    }
    return json_text(all, 2);
  }

  const CtlAction& action_;
  const CtlReports& reports_;
  const CtlInventory inventory_;
  const CtlExpected& expected_;
  const std::map<std::string, std::string>& mappings_;
  std::set<std::string> served_;     ///< names of programs that are no servers, and of their disks
  std::set<std::string> in_kernel_;  ///< names of mappings
  bool idle_ = false;                ///< a client that has nothing to do
  std::vector<Finding> findings_;
  std::set<std::string> met_;  ///< names of the command that something has
  std::uint64_t seen_ = 0, sessions_ = 0, paths_ = 0, paths_up_ = 0, devices_ = 0, exports_ = 0;
};

}  // namespace

CtlVerdict verdict_on(const CtlAction& action, const CtlReports& reports,
                      const std::vector<KernelDevice>& kernel_devices,
                      const CtlExpected& expected) {
  return Examiner{action, reports, kernel_devices, expected}.judge();
}

namespace {

std::map<std::string, std::string> processes_of_mappings(const std::string& root) {
  std::map<std::string, std::string> processes;
  for (const std::string& name : names_of_mappings(root)) {
    const auto mapping = mapping_in({name, {}, files_of_mapping(root, name)});
    processes[name] = mapping ? bridge_of(*mapping) : name;
  }
  return processes;
}

}  // namespace

CtlVerdict check_all(const CtlAction& action) {
  CtlReports reports = ask_all(
      action.root,
      {.patience = kCheckPatience, .counters = false, .elsewhere = action.side != CtlSide::client});
  for (CtlReport& report : reports.all) {
    for (const CtlAnnex* annex : ctl_annexes()) {
      if (annex->judge == nullptr || !annex->has_disk(report.status)) continue;
      std::string trouble;
      CtlJson answer = ask_program(report.program.socket, std::string{annex->question}, trouble);
      if (answer.is_object()) report.status[std::string{annex->name}] = std::move(answer);
      if (!trouble.empty()) reports.silent.push_back(report.program.socket + ": " + trouble);
    }
  }
  const std::vector<KernelDevice> devices = find_kernel_devices(action.root);
  std::error_code ignored;
  return verdict_on(action, reports, devices,
                    {processes_of_mappings(action.root), missing_mounts(action.root, devices),
                     mounts_without_disk(action.root, devices),
                     std::filesystem::exists(action.root + "/etc/rnbd-server.conf", ignored)});
}

}  // namespace rnbd
