// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/steer.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>
#include <vector>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/openers.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/steering.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using std::chrono::steady_clock;

constexpr double kUsualWait = 5, kLongestWait = 3600;  ///< seconds
constexpr std::chrono::milliseconds kLookAtPathEvery{100};

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
    std::string text = name + " is /dev/" + kernel;
    for (const std::string& opener : openers_of(root, kernel)) text += ", " + opener;
    return text;
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
      if (device["program"] != report.program.name) continue;  // a disk of somebody else
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

/// Until all are connected, or the time is over.
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
      outcome.status = 1;
      outcome.error += (outcome.error.empty() ? "" : "\nrnbd-ctl: ") + failed(path, news);
    }
  }
  return outcome;
}

}  // namespace

tl::expected<double, std::string> seconds_to_wait(const CtlAction& action, double usual) {
  if (action.wait.empty()) return usual;
  double seconds = 0;
  const char* const end = action.wait.data() + action.wait.size();
  const auto [read, error] = std::from_chars(action.wait.data(), end, seconds);
  if (error == std::errc{} && read == end && seconds >= 0 && seconds <= kLongestWait)
    return seconds;
  return tl::unexpected("wait: '" + action.wait + "' is not a number of seconds from 0 to 3600");
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
