// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/all_programs.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/ctl/check.hpp"
#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/listing.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/maps.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/shared_bridge.hpp"
#include "bridge/ctl/steering.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {
namespace {

using Outcome = CtlOutcome;

/// The users of a disk are looked for only where they are shown: one whose bridge has died makes it
/// wait.
void add_openers(const CtlAction& action, CtlInventory& inventory) {
  const bool asked =
      action.all_fields || std::ranges::any_of(action.fields, [](const std::string& fields) {
        return fields.find("openers") != std::string::npos;
      });
  for (CtlJson& row : inventory.devices) {
    const bool shown =
        action.verb == CtlVerb::show ? is_device_named(row, action.names.front()) : asked;
    if (!shown || !row["devname"].is_string()) continue;
    row["openers"] = users_of(action.root, row["devname"]);
  }
}

/// One line for all of them, for people.
void tell_of_contained(const CtlAction& action, std::vector<HiddenProgram> programs) {
  std::erase_if(programs, [&](const HiddenProgram& each) {
    return action.side != CtlSide::both && each.server != (action.side == CtlSide::server);
  });
  if (programs.empty() || action.format != CtlFormat::table) return;
  const std::size_t count = programs.size();
  complain(std::to_string(count) + (count == 1 ? " program runs" : " programs run") +
           " in containers: rnbd-ctl there shows " + (count == 1 ? "it" : "them") + " (process " +
           programs.front().process + (count == 1 ? ")" : " and others)"));
}

Outcome list(const CtlAction& action) {
  const CtlReports reports = ask_all(action.root);
  for (const std::string& silent : reports.silent) complain(silent);
  bool looked = true;
  for (const CtlClosedFolder& each : reports.closed) {
    if (each.of_server && action.side == CtlSide::client) continue;
    complain(text_about(each));
    looked = false;
  }
  const CtlSide other = action.side == CtlSide::server ? CtlSide::client : CtlSide::server;
  for (const HiddenProgram& each : reports.hidden) {
    const CtlSide its = each.server ? CtlSide::server : CtlSide::client;
    if (action.side == CtlSide::both || its != other) complain(each.text);
  }
  tell_of_contained(action, reports.contained);
  CtlInventory inventory =
      take_inventory(reports.all, find_kernel_devices(action.root), action.side);
  add_exports_of_mappings(action.root, inventory);
  add_openers(action, inventory);
  const auto text =
      action.verb == CtlVerb::show ? showing(action, inventory) : listing(action, inventory);
  Outcome outcome = text ? Outcome{0, *text, ""} : Outcome{1, "", text.error()};
  if (!reports.silent.empty() || !looked) outcome.status = 1;
  return outcome;
}

/// A command about a disk may name its export as well as its mapping. A name of neither stays as it
/// is.
///
/// Errors: a sentence when several mappings have that export.
tl::expected<CtlAction, std::string> with_mapping(CtlAction action) {
  std::string& name = action.names.front();
  if (!mapping_called(action, name).empty()) return action;
  const CtlInventory all =
      take_inventory(ask_all(action.root).all, find_kernel_devices(action.root), CtlSide::client);
  const std::set<std::string> mappings = mappings_of_export(action.root, name, all);
  if (mappings.size() > 1) {
    return tl::unexpected("'" + name + "' is the export of several disks; write the name of one: " +
                          joined({mappings.begin(), mappings.end()}));
  }
  if (!mappings.empty()) name = *mappings.begin();
  return action;
}

/// A sentence when it is no disk of the kernel, and what it is instead.
std::string complaint_about_disk(const CtlAction& action) {
  const std::string& name = action.names.front();
  if (!mapping_called(action, name).empty()) return "";
  const CtlReports reports = ask_all(action.root);
  const CtlInventory all = take_inventory(reports.all, {}, CtlSide::both);
  const auto is_called = [&](const CtlJson& row) {
    const bool by_client =
        row["direction"] == "import" && (row["program"] == name || row["sessname"] == name);
    return by_client || row["mapping_path"] == name || row["uuid"] == name;
  };
  const auto device = std::ranges::find_if(all.devices, is_called);
  if (device == all.devices.end()) {
    return nothing_named(name);
  }
  const std::string program = (*device)["program"];
  if ((*device)["direction"] == "export" && (*device)["sessname"].is_null()) {
    return "'" + name + "' is no disk of this machine's kernel: " + program +
           " exports it, and nobody has it open; `rnbd-ctl map` makes it a disk";
  }
  if ((*device)["direction"] == "export") {
    return "'" + name + "' is no disk of this machine's kernel: a client of " + program +
           " has it open; `rnbd-ctl server list` tells which one";
  }
  if (!mapping_called(action, program).empty()) {
    return "'" + name + "' is a session; its disk is " + program + ", write that instead";
  }
  return "'" + name + "' is no disk of the kernel: " + program + " serves it to NBD clients; " +
         (action.verb == CtlVerb::resize ? "they see its size when they connect anew"
                                         : "end that program to take it away");
}

Outcome recover_what_can(const CtlAction& action) {
  const bool by_device = !action.object || action.object == CtlObject::device;
  const bool all = action.names.front() == "all";
  const std::string mapping = by_device && !all && action.names.size() == 1
                                  ? mapping_called(action, action.names.front())
                                  : "";
  const bool maps = by_device && (all || !mapping.empty());
  if (!maps && action.object == CtlObject::device) {
    return {1, "", nothing_named(action.names.front())};
  }
  if (!maps) return steer(action);
  const Outcome started = recover_devices(action);
  if (started.status != 0) return started;
  CtlAction its_session = action;
  if (!all) {
    its_session.object = CtlObject::session;
    its_session.names = {mapping};
  }
  // One that has just started connects by itself.
  Outcome outcome = started.out.empty() || all ? steer(its_session) : Outcome{};
  outcome.out = started.out + outcome.out;
  return outcome;
}

Outcome recover(const CtlAction& given) {
  const bool of_path = given.object == CtlObject::path || given.names.size() > 1;
  const bool names_disk =
      !of_path && given.object != CtlObject::session && given.names.front() != "all";
  const auto action = names_disk ? with_mapping(given) : given;
  if (!action) return {1, "", action.error()};
  Outcome outcome = recover_what_can(*action);
  if (of_path) return outcome;
  // Paths do not help these.
  add_complaints(told_of_closed(closed_devices(action->names.front(), ask_all(action->root).all,
                                               find_kernel_devices(action->root))),
                 outcome);
  return outcome;
}

/// The mappings that share a bridge with this one, which is among them.
std::vector<std::string> neighbours_of(const std::string& root, const std::string& name) {
  const auto mapping = mapping_in(find_mapping(root, name));
  std::set<std::string> names{name};
  for (const bool persist : {false, true}) {
    if (!mapping || mapping->bridge.empty()) continue;
    for (const Mapping& each : mappings_of_bridge(root, mapping->bridge, persist))
      names.insert(each.name);
  }
  return {names.begin(), names.end()};
}

/// The disks of a session are those of its bridges. Devices of NBD clients are none.
Outcome remap_session(const CtlAction& action) {
  const std::string& session = action.names.front();
  const CtlReports reports = ask_all(action.root);
  const auto programs = programs_of_session(session, reports.all);
  std::vector<std::string> mappings;
  for (const CtlReport& report : reports.all) {
    if (std::ranges::count(programs, report.program.name) == 0) continue;
    for (const CtlJson& disk : disks_in(report.status)) mappings.push_back(said_text(disk, "disk"));
    if (disks_in(report.status).empty()) mappings.push_back(report.program.name);
  }
  std::erase_if(mappings,
                [&](const std::string& name) { return mapping_called(action, name).empty(); });
  if (!mappings.empty()) return remap_devices(action, mappings);
  // A bridge that has died tells no session; its name stands for it.
  const std::string mapping = mapping_called(action, session);
  if (!mapping.empty()) return remap_devices(action, neighbours_of(action.root, mapping));
  if (!programs.empty()) {
    return {1, "",
            "session '" + session +
                "' has no disk of the kernel; its devices belong to NBD clients, who have to "
                "connect anew"};
  }
  return {1, "",
          "there is no " + std::string{action.object ? "" : "disk or "} + "session '" + session +
              "'; `rnbd-ctl client list sessions` tells of all"};
}

Outcome remap(const CtlAction& given) {
  if (given.object == CtlObject::path) {
    return {1, "", "disks and sessions are mapped anew; write path readd for a path"};
  }
  const auto named = given.object != CtlObject::session ? with_mapping(given) : given;
  if (!named) return {1, "", named.error()};
  const CtlAction& action = *named;
  const std::string mapping = mapping_called(action, action.names.front());
  const bool is_device = action.object == CtlObject::device || !mapping.empty();
  if (is_device && action.object != CtlObject::session) {
    return remap_devices(action, {action.names.front()});
  }
  return remap_session(action);
}

Outcome unmap_or_resize(const CtlAction& given) {
  const auto action = with_mapping(given);
  if (!action) return {1, "", action.error()};
  if (const std::string wrong = complaint_about_disk(*action); !wrong.empty()) {
    return {1, "", wrong};
  }
  return action->verb == CtlVerb::unmap ? unmap_device(*action) : resize_device(*action);
}

/// The disks that share a bridge and are there.
Outcome await_links(const CtlAction& action) {
  const auto patience = seconds_to_wait(action, 0);
  if (!patience) return {2, "", patience.error()};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(*patience);
  Outcome outcome;
  for (const bool persist : {false, true}) {
    for (const Mapping& each : mappings_of_bridge(action.root, action.names.front(), persist)) {
      const auto device = device_called(action.root, each.name);
      const std::chrono::duration<double> rest = limit - std::chrono::steady_clock::now();
      const std::string missing =
          device ? await_link(action.root, *device, rest.count()) : std::string{};
      if (!missing.empty()) add_complaints({missing}, outcome);
    }
  }
  return outcome;
}

/// Source: udev(7), IMPORT{program}.
Outcome tell_udev(const CtlAction& action) {
  if (is_bridge_key(action.names.front())) return await_links(action);
  const auto device = find_mapping(action.root, action.names.front()).device;
  if (!device) return {1, "", action.names.front() + " is no device of rnbd-bridge"};
  if (!action.wait.empty()) {
    const auto patience = seconds_to_wait(action, 0);
    if (!patience) return {2, "", patience.error()};
    std::string missing = await_link(action.root, *device, *patience);
    return {missing.empty() ? 0 : 1, "", std::move(missing)};
  }
  return {0, "RNBD_NAME=" + device->name + "\nRNBD_UUID=" + device->uuid + "\n", ""};
}

Outcome perform(const CtlAction& action) {
  switch (action.verb) {
    case CtlVerb::help:
      return {0, help_on_ctl_words(action), ""};
    case CtlVerb::list:
    case CtlVerb::show:
      return list(action);
    case CtlVerb::check: {
      const CtlVerdict verdict = check_all(action);
      return {static_cast<int>(verdict.health), verdict.text, ""};
    }
    case CtlVerb::udev:
      return tell_udev(action);
    case CtlVerb::map:
      return map_device(action);
    case CtlVerb::unmap:
    case CtlVerb::resize:
      return unmap_or_resize(action);
    case CtlVerb::remap:
      return remap(action);
    case CtlVerb::recover:
      return recover(action);
    case CtlVerb::add:
    case CtlVerb::remove:
    case CtlVerb::readd:
    case CtlVerb::disconnect:
    case CtlVerb::reconnect:
    case CtlVerb::close:
      return steer(action);
  }
  return {};
}

/// The kernel's devices of this machine may be written as links, too. A server has names of its
/// own.
void resolve_links(CtlAction& action) {
  const bool of_server = action.side == CtlSide::server || action.verb == CtlVerb::map ||
                         action.verb == CtlVerb::close;
  if (of_server) return;
  for (std::string& name : action.names) name = without_link(action.root, name);
}

/// The exit status.
int print(const Outcome& outcome) {
  say(outcome.out);
  if (!outcome.error.empty()) complain(outcome.error);
  return outcome.status;
}

/// The command is carried out again and again until Ctrl-C, or until nobody reads its output.
int watch(const CtlAction& action) {
  const auto seconds = seconds_between_looks(action);
  if (!seconds) return print({2, "", seconds.error()});
  const bool clears = ::isatty(STDOUT_FILENO) == 1 && action.format == CtlFormat::table;
  for (;;) {
    const Outcome outcome = perform(action);
    if (clears) clear_terminal();
    print(outcome);
    if (!clears) say("\n");
    if (!is_written()) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(*seconds));
  }
}

}  // namespace

std::optional<int> run_ctl_words(int argc, const char* const* argv) {
  const std::vector<std::string> words{argv + 1, argv + argc};
  if (!begins_with_ctl_word(words)) return std::nullopt;
  auto action = parse_ctl_words(words);
  if (action) resolve_links(*action);
  if (!action) return print({status_of_failure(words, 2), "", action.error()});
  return action->watch ? watch(*action) : print(perform(*action));
}

}  // namespace rnbd
