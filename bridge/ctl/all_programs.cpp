// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/all_programs.hpp"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/listing.hpp"
#include "bridge/ctl/maps.hpp"
#include "bridge/ctl/steering.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {
namespace {

/// One that hangs must not keep the others from being shown for long.
constexpr std::chrono::seconds kPatienceWithEach{5};

struct Outcome {
  int status = 0;
  std::string out, error;
};

Outcome outcome_of(const tl::expected<std::string, std::string>& text) {
  return text ? Outcome{0, *text, ""} : Outcome{1, "", text.error()};
}

Outcome outcome_of(const MapAnswer& answer) {
  return answer ? Outcome{0, *answer, ""} : Outcome{answer.error().status, "", answer.error().text};
}

/// Null when it does not answer with an object, or with an error.
CtlJson ask(const CtlProgram& program, const char* command, std::string& trouble) {
  const auto answer = ask_control_socket(program.socket, command, kPatienceWithEach);
  if (!answer) {
    // Left behind by a program that was killed.
    if (answer.error().error != ECONNREFUSED) trouble = answer.error().text;
    return nullptr;
  }
  CtlJson json = CtlJson::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && !json.contains("error")) return json;
  trouble = "it does not answer as a program of rnbdkit does";
  return nullptr;
}

/// Standard error names the programs that cannot be asked.
std::vector<CtlReport> ask_all(const std::string& root, bool& complete) {
  std::vector<CtlReport> reports;
  for (const CtlProgram& program : find_programs(root)) {
    std::string trouble, ignored;
    CtlJson status = ask(program, "status", trouble);
    if (!trouble.empty()) {
      std::fprintf(stderr, "rnbd-ctl: %s: %s\n", program.socket.c_str(), trouble.c_str());
      complete = false;
    }
    if (status.is_null()) continue;
    // A plugin has none.
    reports.push_back({program, std::move(status), ask(program, "counters", ignored)});
  }
  return reports;
}

Outcome list(const CtlAction& action) {
  bool complete = true;
  const CtlInventory inventory =
      take_inventory(ask_all(action.root, complete), find_kernel_devices(action.root), action.side);
  Outcome outcome = outcome_of(action.verb == CtlVerb::show ? showing(action, inventory)
                                                            : listing(action, inventory));
  if (!complete) outcome.status = 1;
  return outcome;
}

/// "" or the obstacle.
std::string take(const CtlStep& step) {
  const auto answer = ask_control_socket(step.socket, step.line);
  if (!answer) return step.socket + ": " + answer.error().text;
  const CtlJson json = CtlJson::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return step.socket + " does not answer as a control socket does";
  return json.contains("error") ? json.value("message", std::string{"it failed"}) : "";
}

/// The first step that fails ends the rest.
Outcome steer(const CtlAction& action) {
  bool complete = true;
  const auto steps = steps_of(action, ask_all(action.root, complete));
  if (!steps) return {1, "", steps.error()};
  for (const CtlStep& step : *steps) {
    if (const std::string wrong = take(step); !wrong.empty()) return {1, "", wrong};
  }
  return {complete ? 0 : 1, "", ""};
}

Outcome recover(const CtlAction& action) {
  const bool by_device = !action.object || action.object == CtlObject::device;
  const bool all = action.names.front() == "all";
  const std::string mapping = by_device && !all && action.names.size() == 1
                                  ? mapping_called(action, action.names.front())
                                  : "";
  const bool maps = by_device && (all || !mapping.empty());
  if (!maps && action.object == CtlObject::device) {
    return {1, "",
            "nothing is mapped as '" + action.names.front() +
                "'; `rnbd-ctl client list` tells what is"};
  }
  if (!maps) return steer(action);
  const MapAnswer started = recover_devices(action);
  if (!started) return {started.error().status, "", started.error().text};
  CtlAction its_session = action;
  if (!all) {
    its_session.object = CtlObject::session;
    its_session.names = {mapping};
  }
  // One that has just started connects by itself.
  Outcome outcome = started->empty() || all ? steer(its_session) : Outcome{};
  outcome.out = *started;
  return outcome;
}

/// The disks of a session are those of its bridges. Devices of NBD clients are none.
Outcome remap_session(const CtlAction& action) {
  bool complete = true;
  const std::string& session = action.names.front();
  const auto programs = programs_of_session(session, ask_all(action.root, complete));
  std::vector<std::string> mappings;
  for (const std::string& program : programs) {
    if (!mapping_called(action, program).empty()) mappings.push_back(program);
  }
  if (!mappings.empty()) return outcome_of(remap_devices(action, mappings));
  // A bridge that has died tells no session; its name stands for it.
  const std::string mapping = mapping_called(action, session);
  if (!mapping.empty()) return outcome_of(remap_devices(action, {mapping}));
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

Outcome remap(const CtlAction& action) {
  if (action.object == CtlObject::path) {
    return {1, "", "disks and sessions are mapped anew; write path readd for a path"};
  }
  const std::string mapping = mapping_called(action, action.names.front());
  const bool is_device = action.object == CtlObject::device || !mapping.empty();
  if (is_device && action.object != CtlObject::session) {
    return outcome_of(remap_devices(action, {action.names.front()}));
  }
  return remap_session(action);
}

/// Source: udev(7), IMPORT{program}.
Outcome tell_udev(const CtlAction& action) {
  const auto device = find_kernel_device(action.root, action.names.front());
  if (!device) return {1, "", action.names.front() + " is no device of rnbd-bridge"};
  return {0, "RNBD_NAME=" + device->name + "\nRNBD_UUID=" + device->uuid + "\n", ""};
}

Outcome perform(const CtlAction& action) {
  switch (action.verb) {
    case CtlVerb::help:
      return {0, help_on_ctl_words(action.topic), ""};
    case CtlVerb::list:
    case CtlVerb::show:
      return list(action);
    case CtlVerb::udev:
      return tell_udev(action);
    case CtlVerb::map:
      return outcome_of(map_device(action));
    case CtlVerb::unmap:
      return outcome_of(unmap_device(action));
    case CtlVerb::remap:
      return remap(action);
    case CtlVerb::resize:
      return outcome_of(resize_device(action));
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

/// The exit status.
int print(const Outcome& outcome) {
  std::fputs(outcome.out.c_str(), stdout);
  if (!outcome.error.empty()) std::fprintf(stderr, "rnbd-ctl: %s\n", outcome.error.c_str());
  return std::fflush(stdout) == 0 ? outcome.status : 1;
}

/// Until Ctrl-C, or until nobody reads it.
int watch(const CtlAction& action) {
  double seconds = 1;
  const char* const end = action.interval.data() + action.interval.size();
  const auto [read, error] = std::from_chars(action.interval.data(), end, seconds);
  const bool given = !action.interval.empty();
  if (given && (error != std::errc{} || read != end || seconds < 0.1 || seconds > 3600)) {
    return print({2, "", "'" + action.interval + "' is not a number of seconds from 0.1 to 3600"});
  }
  const bool clears = ::isatty(STDOUT_FILENO) == 1 && action.format == CtlFormat::table;
  for (;;) {
    const Outcome outcome = perform(action);
    if (clears) std::fputs("\033[H\033[2J", stdout);
    if (print(outcome) != outcome.status) return 1;
    if (!clears) std::fputs("\n", stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

}  // namespace

std::optional<int> run_ctl_words(int argc, const char* const* argv) {
  const std::vector<std::string> words{argv + 1, argv + argc};
  if (!begins_with_ctl_word(words)) return std::nullopt;
  const auto action = parse_ctl_words(words);
  if (!action) return print({2, "", action.error()});
  return action->watch ? watch(*action) : print(perform(*action));
}

}  // namespace rnbd
