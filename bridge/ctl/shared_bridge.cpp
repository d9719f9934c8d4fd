// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/shared_bridge.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "bridge/client/uri.hpp"
#include "bridge/ctl/hidden.hpp"
#include "bridge/ctl/whole_file.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAgain{20};
constexpr std::chrono::seconds kTimeToAnswer{10};

std::string socket_of(const std::string& root, const std::string& key) {
  return root + "/run/rnbd/map/" + key + ".control";
}

struct Answer {
  CtlJson json;         ///< null: there is none
  std::string trouble;  ///< of the socket, or the bridge's refusal
  int error = 0;        ///< errno of the socket
};

Answer ask(const std::string& root, const std::string& key, const std::string& line,
           std::chrono::seconds patience = kTimeToAnswer) {
  const std::string socket = socket_of(root, key);
  const auto answer = ask_control_socket(socket, line, patience);
  if (!answer) return {nullptr, socket + ": " + answer.error().text, answer.error().error};
  CtlJson json = parse_answer(*answer);
  if (json.is_null())
    return {nullptr, socket + " does not answer as a control socket does", EPROTO};
  if (json.contains("error")) return {nullptr, readable_text(message_of(json))};
  return {std::move(json), ""};
}

bool is_other(const CtlJson& disk, const Mapping& mapping) {
  const auto uri = parse_device_uri(mapping.uri);
  return said_text(disk, "state") == "serving" &&
         !(uri && plain_path(said_text(disk, "device")) == plain_path(uri->device));
}

bool is_gone(int error) { return error == ENOENT || error == ECONNREFUSED; }

tl::expected<rtrs::OwnedFd, std::string> lock_called(const std::string& root,
                                                     const std::string& name) {
  const std::string folder = folder_of_mappings(root, /*persist=*/false);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return tl::unexpected(folder + ": " + error.message());
  return lock_file(folder + "/" + name + ".lock");
}

}  // namespace

const CtlJson& disks_in(const CtlJson& status) { return said_list(status, "disks"); }

const CtlJson* disk_called(const CtlJson& status, const std::string& name) {
  const CtlJson& all = disks_in(status);
  const auto found = std::ranges::find_if(
      all, [&](const CtlJson& each) { return each.is_object() && said(each, "disk") == name; });
  return found != all.end() ? &*found : nullptr;
}

std::string bridge_serving(const std::string& root, const std::string& name) {
  for (const CtlProgram& program : find_programs(root)) {
    if (!is_bridge_key(program.name)) continue;
    const Answer answer = ask(root, program.name, "status");
    if (disk_called(answer.json, name) != nullptr) return program.name;
  }
  return "";
}

bool is_served(const std::string& root, const Mapping& mapping) {
  const Answer answer = ask(root, mapping.bridge, "status");
  const CtlJson* const disk = disk_called(answer.json, mapping.name);
  return disk != nullptr && said_text(*disk, "state") == "serving";
}

bool has_other_disk(const std::string& root, const Mapping& mapping) {
  const Answer answer = ask(root, mapping.bridge, "status");
  const CtlJson* const disk = disk_called(answer.json, mapping.name);
  return disk != nullptr && is_other(*disk, mapping);
}

std::string add_disk(const std::string& root, const Mapping& mapping, bool again) {
  const Answer known = again ? Answer{} : ask(root, mapping.bridge, "status");
  if (known.error != 0) return known.trouble;
  if (disk_called(known.json, mapping.name) == nullptr) {
    const Answer added = ask(root, mapping.bridge, "add-disk " + mapping.name);
    if (added.json.is_null()) return added.trouble;
  }
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    const Answer answer = ask(root, mapping.bridge, "status");
    if (answer.json.is_null()) return answer.trouble;
    const CtlJson* const disk = disk_called(answer.json, mapping.name);
    if (disk == nullptr) return "its bridge has let go of it";
    const std::string state = said_text(*disk, "state"), trouble = said_text(*disk, "trouble");
    if (is_other(*disk, mapping)) {
      return "its bridge serves another export under this name, " +
             readable_text(said_text(*disk, "device"));
    }
    if (state == "serving") return "";
    if (state == "leaving") return "its bridge is taking it away";
    if (state != "connecting" && !trouble.empty()) return readable_text(trouble);
  }
}

DiskRemoval remove_disk(const std::string& root, const std::string& key, const std::string& name,
                        std::chrono::seconds patience) {
  const auto limit = steady_clock::now() + patience;
  const Answer removed = ask(root, key, "remove-disk " + name, patience);
  if (is_gone(removed.error)) return DiskRemoval::no_bridge;
  if (removed.error != 0) return DiskRemoval::hangs;
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    const Answer answer = ask(root, key, "status", patience);
    if (is_gone(answer.error)) return DiskRemoval::no_bridge;
    if (!answer.json.is_null() && disk_called(answer.json, name) == nullptr)
      return DiskRemoval::done;
    if (steady_clock::now() >= limit) return DiskRemoval::hangs;
  }
}

tl::expected<rtrs::OwnedFd, std::string> lock_bridge(const std::string& root,
                                                     const std::string& key) {
  return lock_called(root, key);
}

tl::expected<rtrs::OwnedFd, std::string> lock_names(const std::string& root) {
  return lock_called(root, "names");  // no key: it lacks the colon
}

std::string end_if_unused(const std::string& root, const std::string& key, Supervisor& supervisor,
                          BridgeEnd how) {
  if (!mappings_of_bridge(root, key, /*persist=*/true).empty()) return "";
  std::string wrong;
  if (mappings_of_bridge(root, key, /*persist=*/false).empty())
    wrong = supervisor.stop(key, how.force);
  if (wrong.empty() && how.lasting) wrong = supervisor.disable(key);
  return wrong;
}

void forget_if_ended(const std::string& root, const std::string& key, Supervisor& supervisor) {
  for (const bool persist : {false, true}) {
    if (!mappings_of_bridge(root, key, persist).empty()) return;
  }
  supervisor.forget(key);
  std::error_code ignored;
  fs::remove(folder_of_mappings(root, /*persist=*/false) + "/" + key + ".lock", ignored);
}

bool has_twin(const std::string& root, const Mapping& mapping) {
  const auto uri = parse_device_uri(mapping.uri);
  for (const bool persist : {false, true}) {
    for (const Mapping& other : mappings_of_bridge(root, mapping.bridge, persist)) {
      const auto its = parse_device_uri(other.uri);
      if (other.name != mapping.name && uri && its &&
          plain_path(its->device) == plain_path(uri->device)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace rnbd
