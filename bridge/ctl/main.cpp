// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl: asks and tells a running program over its control socket.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <exception>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/ctl/all_programs.hpp"
#include "bridge/ctl/annexes.hpp"
#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/discover.hpp"
#include "bridge/ctl/hidden.hpp"
#include "bridge/ctl/keys.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/program_words.hpp"
#include "bridge/ctl/upgrade.hpp"
#include "bridge/ctl/words.hpp"
#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using std::chrono::steady_clock;

constexpr const char* kDescription =
    "rnbd-ctl - map disks, and show and change what running rnbdkit programs do\n"
    "\n"
    "SOCKET is the control socket of rnbd-bridge or rnbd-server (--control) or of nbdkit's rnbd "
    "plugin (control=).\n"
    "Those in /run/rnbd are found by their names, and need not be named if there is one only.\n"
    "COMMAND is one that the program knows. Every command has a --help of its own.\n";

constexpr const char* kExamples = R"(Examples:
  Which disks does a server have, and who uses them?
    rnbd-ctl discover storage.example

  Make one of them a disk of this machine, also after the next boot; and take it away
    rnbd-ctl map disk0 from storage.example --persist
    rnbd-ctl unmap disk0

  What does this machine use, and what does it serve?
    rnbd-ctl list
    rnbd-ctl list sessions
    rnbd-ctl show disk0

  Who has a disk of this server open, from which host? Throw him out
    rnbd-ctl server list
    rnbd-ctl server close disk0 --force

  Who has a disk of this machine mounted or open? See openers
    rnbd-ctl show disk0

  Is all well? For monitoring, as Nagios has it
    rnbd-ctl check

  Which paths are there, and how are they?
    rnbd-ctl /run/rnbd/disk0.control status

  Move a session to another network card, without a pause:
    rnbd-ctl /run/rnbd/disk0.control add-path 10.0.1.1
    rnbd-ctl /run/rnbd/disk0.control remove-path 10.0.0.1

  What do devices and paths do now?
    rnbd-ctl /run/rnbd/disk0.control top

  For scripts:
    rnbd-ctl --json /run/rnbd/disk0.control status | jq .paths

Exit status: 0, done; 1, not done, and standard error says why; 2, a wrong command line. Of check:
0, all is well; 1, a warning; 2, critical; 3, not known.

rnbd-ctl(8) explains everything.)";

struct Invocation {
  std::string socket;
  std::vector<std::string> words;
  bool json = false;
  bool watch = false;
  bool once = false;    ///< top: ends after one interval
  double interval = 1;  ///< top, watch: seconds
};

// ---- top ----------------------------------------------------------------------------------------

constexpr double kMega = 1e6, kMicrosecond = 1e3;  ///< bytes; nanoseconds

double number_of(const CtlJson& object, const std::string& name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

double rounded(double value) { return std::round(value * 10) / 10; }

double increase(const CtlJson& before, const CtlJson& after, const std::string& name) {
  const double now = number_of(after, name);
  const double then = number_of(before, name);
  return now >= then ? now - then : now;
}

/// The object of a list that is about the same thing.
CtlJson same_in(const CtlJson& list, const CtlJson& object,
                std::initializer_list<const char*> keys) {
  for (const CtlJson& each : list) {
    if (std::ranges::all_of(keys,
                            [&](const char* key) { return said(each, key) == said(object, key); }))
      return each;
  }
  return CtlJson::object();
}

/// The mean of those that were timed; null: there were none.
CtlJson mean_latency(const CtlJson& before, const CtlJson& after, const std::string& operation) {
  const double timed = increase(before, after, operation + "_timed");
  if (timed <= 0) return nullptr;
  return rounded(increase(before, after, operation + "_timed_ns") / timed / kMicrosecond);
}

/// The rates between two answers to `counters`, which are `seconds` > 0 apart: an object with the
/// lists `devices` and `paths`. A counter that went back has started from 0.
CtlJson rates_between(const CtlJson& before, const CtlJson& after, double seconds) {
  CtlJson rates{{"devices", CtlJson::array()}, {"paths", CtlJson::array()}};
  for (const CtlJson& device : after["devices"]) {
    const CtlJson then = same_in(before["devices"], device, {"device"});
    const auto rate = [&](const char* name, double unit) {
      return rounded(increase(then, device, name) / seconds / unit);
    };
    rates["devices"].push_back({{"device", said(device, "device")},
                                {"r/s", rate("read_ops", 1)},
                                {"w/s", rate("write_ops", 1)},
                                {"other/s", rate("other_ops", 1)},
                                {"rMB/s", rate("read_bytes", kMega)},
                                {"wMB/s", rate("write_bytes", kMega)},
                                {"r_await_us", mean_latency(then, device, "read")},
                                {"w_await_us", mean_latency(then, device, "write")},
                                {"in_flight", number_of(device, "in_flight")},
                                {"errors/s", rate("errors", 1)}});
  }
  for (const CtlJson& path : after["paths"]) {
    const CtlJson then = same_in(before["paths"], path, {"path", "session"});
    rates["paths"].push_back({{"path", said(path, "path")},
                              {"session", said(path, "session")},
                              {"state", said(path, "state")},
                              {"req/s", rounded(increase(then, path, "requests") / seconds)},
                              {"in_flight", number_of(path, "in_flight")},
                              {"latency_us", said(path, "latency_us")}});
  }
  return rates;
}

/// Shows the rates until the program does not answer. Returns the exit status.
int top(const Invocation& invocation) {
  const bool json = invocation.json, once = invocation.once;
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 && !once && !json;
  CtlJson before;
  steady_clock::time_point then;
  for (;;) {
    const auto answer = ask_control_socket(invocation.socket, "counters");
    const auto now = steady_clock::now();
    if (!answer) {
      complain(answer.error().text);
      return 1;
    }
    CtlJson after = parse_answer(*answer);
    if (!after.is_object() || !after.contains("devices") || !after.contains("paths")) {
      complain(readable_text(after.contains("message") ? message_of(after) : "no counters"));
      return 1;
    }
    if (!before.is_null()) {
      const std::chrono::duration<double> passed = now - then;
      const CtlJson rates = rates_between(before, after, std::max(passed.count(), 1e-3));
      if (on_terminal) clear_terminal();
      say(json ? readable_json(rates.dump()) + '\n' : readable(rates));
      if (!json && !on_terminal && !once) say("\n");
      if (!is_written()) return 1;
      if (once) return 0;
    }
    before = std::move(after);
    then = now;
    std::this_thread::sleep_for(std::chrono::duration<double>(invocation.interval));
  }
}

// ---- Commands of one program --------------------------------------------------------------------

/// Tells what kept the program from answering, as an answer of its own would be told.
int fail(const Invocation& invocation, int error, const std::string& text) {
  if (invocation.json) {
    say(readable_json(error_answer(error, text)) + "\n");
  } else {
    complain(text);
  }
  return 1;
}

/// The exit status.
int show(const Invocation& invocation, const std::string& answer) {
  const auto json = parse_answer(answer);
  if (json.is_null()) {
    return fail(invocation, EPROTO,
                invocation.socket + " does not answer as a control socket does");
  }
  if (invocation.json) {
    say(readable_json(answer) + "\n");
  } else if (json.contains("error")) {
    // Programs do not know the verbs of rnbd-ctl.
    const std::string guess = json["error"] == "EINVAL" ? ctl_verb_like(invocation.words[0]) : "";
    complain(readable_text(message_of(json)) + guess);
  } else if (json.size() == 1 && json.contains("text") && json["text"].is_string()) {
    say(json["text"].get_ref<const std::string&>());
  } else {
    say(readable(json));
  }
  return json.contains("error") ? 1 : 0;
}

int ask_once(const Invocation& invocation) {
  const auto answer = ask_control_socket(invocation.socket, joined(invocation.words, " "));
  if (answer) return show(invocation, *answer);
  return fail(invocation, answer.error().error, invocation.socket + ": " + answer.error().text);
}

/// The program is asked again and again until Ctrl-C, or a failure.
int watch(const Invocation& invocation) {
  const bool clears = ::isatty(STDOUT_FILENO) == 1 && !invocation.json;
  for (;;) {
    if (clears) clear_terminal();
    if (const int status = ask_once(invocation); status != 0) return status;
    if (!clears && !invocation.json) say("\n");
    if (!is_written()) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(invocation.interval));
  }
}

/// The annex whose command these words are, if it goes on when it has been answered.
const CtlAnnex* annex_of_long(const std::vector<std::string>& words) {
  for (const CtlAnnex* annex : ctl_annexes())
    if (annex->progress_of != nullptr && !annex->progress_of(words).empty()) return annex;
  return nullptr;
}

/// Begins a command, and shows how far it is until it ends. The program goes on with it when nobody
/// waits any more.
int follow(const Invocation& invocation, const CtlAnnex& annex) {
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 && !invocation.json;
  const std::string question{annex.progress_of(invocation.words)};
  auto answer = ask_control_socket(invocation.socket, joined(invocation.words, " "));
  for (;;) {
    if (!answer)
      return fail(invocation, answer.error().error, invocation.socket + ": " + answer.error().text);
    const CtlJson told = parse_answer(*answer);
    if (told.is_null() || told.contains("error")) return show(invocation, *answer);
    const auto status = annex.outcome(told);
    if (on_terminal) clear_terminal();
    if (on_terminal || status) show(invocation, *answer);
    if (status) return *status;
    if (!is_written()) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(invocation.interval));
    answer = ask_control_socket(invocation.socket, question);
  }
}

int upgrade(const Invocation& invocation) {
  const bool quiet = invocation.json || ::isatty(STDOUT_FILENO) != 1;
  const auto told = upgrade_program(
      invocation.socket,
      quiet ? [](const std::string&) {} : [](const std::string& line) { say(line + "\n"); });
  if (!told)
    return fail(invocation, told.error().error,
                invocation.socket + ": " + readable_text(told.error().text));
  if (invocation.json) {
    say(readable_json(told->dump()) + "\n");
  } else {
    say("replaced by process " + std::to_string(said_number(*told, "pid")) + ", version " +
        readable_text(said_text(*told, "version")) + "\n");
  }
  return 0;
}

int run(const Invocation& invocation) {
  if (invocation.words == std::vector<std::string>{"upgrade"}) return upgrade(invocation);
  if (invocation.words.front() == "top") return top(invocation);
  if (const CtlAnnex* annex = annex_of_long(invocation.words)) return follow(invocation, *annex);
  return invocation.watch ? watch(invocation) : ask_once(invocation);
}

/// "" or what is wrong with words that begin as a command for all programs does, and are none.
std::string complaint_about_group(const Invocation& invocation,
                                  const std::vector<CtlProgram>& programs) {
  std::vector<std::string> words{invocation.socket};
  words.insert(words.end(), invocation.words.begin(), invocation.words.end());
  std::string wrong = complaint_about_ctl_group(words);
  if (wrong.empty() || words.front() != "server") return wrong;
  for (const HiddenProgram& each : find_hidden_programs("", programs)) {
    if (each.server && !each.contained) wrong += "; " + each.text;
  }
  return wrong;
}

/// The bridge that the mapping of this name shares with others; "": none.
std::string bridge_key_of(const std::string& name) {
  const auto mapping = mapping_in({name, {}, files_of_mapping("", name)});
  return mapping ? mapping->bridge : "";
}

/// The first word is a socket's path, or the name of a program that was found; else the socket is
/// the only one that is found. "" or what is wrong.
std::string find_socket(Invocation& invocation) {
  const std::vector<CtlProgram> programs = find_programs("");
  const auto named = std::ranges::find(programs, invocation.socket, &CtlProgram::name);
  if (invocation.socket.find('/') != std::string::npos) return "";
  if (named != programs.end()) {
    invocation.socket = named->socket;
    return "";
  }
  if (const std::string key = bridge_key_of(invocation.socket); !key.empty()) {
    const auto shared = std::ranges::find(programs, key, &CtlProgram::name);
    if (shared != programs.end()) {
      invocation.socket = shared->socket;
      return "";
    }
  }
  if (::access(invocation.socket.c_str(), F_OK) == 0) return "";
  if (std::string wrong = complaint_about_group(invocation, programs); !wrong.empty()) return wrong;
  const std::string guess = ctl_verb_like(invocation.socket);
  const std::string no_command = "'" + invocation.socket + "' is no command" + guess;
  if (programs.empty()) {
    return no_command + (guess.empty() ? ", and" : " And it is") +
           " no control socket, of which none is found; looked for " + places_of_programs("");
  }
  if (programs.size() > 1) {
    std::string names;
    for (const CtlProgram& program : programs) names += ' ' + program.name;
    return (guess.empty() ? "'" + invocation.socket + "' is" : no_command + " And it is") +
           " no control socket; write the name of a program first, one of:" + names;
  }
  if (!guess.empty()) {
    return no_command + " A command of the program that runs is written rnbd-ctl " +
           programs.front().name + " " + invocation.socket;
  }
  invocation.words.insert(invocation.words.begin(), invocation.socket);
  invocation.socket = programs.front().socket;
  return "";
}

tl::expected<Invocation, EarlyExit> parse(int argc, const char* const* argv) {
  CLI::App app{kDescription + ("\nCommands that need no SOCKET:\n" + ctl_verbs_in_short()),
               "rnbd-ctl"};
  Invocation invocation;
  app.add_flag("--json", invocation.json, "Print the answer as it is, one line of JSON.");
  bool check = false, force = false, split = false;
  std::string from;
  app.add_flag("--check", check, "reload: only say what it would do.");
  app.add_flag("--force", force, "Do it although somebody uses what it is about.");
  app.add_flag("--split", split, "With --force: also beside a client that uses another copy.");
  app.add_option("--from", from,
                 "verify: where copies differ, the others get the data of this one.")
      ->type_name("SERVER");
  app.add_flag("--once", invocation.once, "top: one interval, then end.");
  app.add_flag("--watch", invocation.watch, "Ask again every second, until Ctrl-C.");
  app.add_option("--interval", invocation.interval,
                 "top, --watch: seconds between two looks (default 1).")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("SOCKET", invocation.socket, "The program's control socket.");
  app.add_option("COMMAND", invocation.words, "What to do, and with what.")
      ->type_name("[ARGUMENT...]");
  if (auto early = parse_arguments(app, kExamples, "name the socket first", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }
  const std::string example =
      "write rnbd-ctl SOCKET COMMAND, e.g. rnbd-ctl /run/rnbd/x.control status, or rnbd-ctl list";
  if (invocation.socket.empty()) return tl::unexpected(usage_error(app, example));
  if (invocation.socket == "version" && invocation.words.empty()) {  // as IONOS's rnbd has it
    return tl::unexpected(EarlyExit{0, app.version() + "\n"});
  }
  // As `rnbd-ctl show NAME`, too.
  if (invocation.socket == "upgrade" && invocation.words.size() == 1)
    std::swap(invocation.socket, invocation.words.front());
  if (std::string wrong = find_socket(invocation); !wrong.empty()) {
    return tl::unexpected(usage_error(app, wrong));
  }
  if (invocation.words.empty()) return tl::unexpected(usage_error(app, example));
  if (check) invocation.words.emplace_back("--check");
  if (force) invocation.words.emplace_back("--force");
  if (split) invocation.words.emplace_back("--split");
  if (!from.empty()) invocation.words.insert(invocation.words.end(), {"--from", from});
  for (const std::string& word : invocation.words) {
    if (word.find('\n') != std::string::npos) {
      return tl::unexpected(usage_error(app, "a command has one line only"));
    }
  }
  return invocation;
}

int perform(int argc, char** argv) {
  if (const auto status = run_key_command(argc, argv)) return *status;
  if (const auto status = run_discover(argc, argv)) return *status;
  if (const auto status = run_ctl_words(argc, argv)) return *status;
  if (const auto help = help_on_program_word({argv + 1, argv + argc})) {
    say(*help);
    return 0;
  }
  const auto invocation = parse(argc, argv);
  return invocation ? run(*invocation) : leave_early(invocation.error());
}

}  // namespace
}  // namespace rnbd

int main(int argc, char** argv) {
  if (!rnbd::open_standard_streams()) return 1;
  const int unwritten = rnbd::status_of_failure({argv + 1, argv + argc}, 1);
  try {
    return rnbd::with_output(rnbd::perform(argc, argv), unwritten);
  } catch (const std::exception& error) {
    rnbd::complain(error.what());
    return unwritten;
  }
}
