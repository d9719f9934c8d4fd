// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/found_mapping.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>
#include <utility>

#include "bridge/ctl/nbd_disconnect.hpp"
#include "bridge/ctl/openers.hpp"
#include "bridge/ctl/programs.hpp"
#include "bridge/ctl/reports.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToDisconnect{10};
constexpr std::chrono::seconds kTimeToTell{2};
constexpr std::chrono::seconds kTimeForUdev{5};
constexpr std::chrono::milliseconds kLookForItsEnd{50};

std::vector<std::string> files_of(const std::string& root, const std::string& name) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const bool persist : {false, true}) {
    const std::string path = path_of_mapping(root, name, persist);
    if (fs::exists(path, ignored)) files.push_back(path);
  }
  return files;
}

bool await_gone(const std::string& root, const std::string& device) {
  const auto limit = steady_clock::now() + kTimeToDisconnect;
  while (find_kernel_device(root, device)) {
    if (steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(kLookForItsEnd);
  }
  return true;
}

/// Waits while udev alone looks at the disk, as it does when that has just been mapped.
void let_udev_look(const std::string& root, const std::string& device) {
  const auto limit = steady_clock::now() + kTimeForUdev;
  while (is_only_udev(openers_of(root, device)) && steady_clock::now() < limit)
    std::this_thread::sleep_for(kLookForItsEnd);
}

/// With or without a bridge that works. "" or the obstacle.
std::string take_from_kernel(const std::string& root, const FoundMapping& found) {
  if (!found.device || !find_kernel_device(root, found.device->device)) return "";
  if (!root.empty()) return found.device->device + ": not a device of this machine's kernel";
  return disconnect_kernel_device(found.device->device);
}

/// "" or the obstacle. The kernel tells the bridge that the disk is removed. One that reads nothing
/// any more holds that up, and all generic netlink of the machine with it, until it is killed.
std::string take_by_force(const std::string& root, const FoundMapping& found,
                          Supervisor& supervisor) {
  std::packaged_task<std::string()> task{[=] { return take_from_kernel(root, found); }};
  auto taken = task.get_future();
  std::thread{std::move(task)}.detach();
  if (taken.wait_for(kTimeToTell) == std::future_status::ready) return taken.get();
  supervisor.kill(found.name);
  if (taken.wait_for(kTimeToDisconnect) == std::future_status::ready) return taken.get();
  return "the kernel cannot tell the bridge of " + found.device->device +
         " that its disk goes, because that reads nothing any more; kill that process";
}

/// "mounted at /mnt, open in 123 (dd)"
std::string users_of(const std::string& root, const std::string& device) {
  std::string list;
  for (const std::string& opener : openers_of(root, device)) {
    list += (list.empty() ? "" : ", ") + opener;
  }
  return list;
}

}  // namespace

std::string warning_about_users(const std::string& root, const FoundMapping& found) {
  if (!found.device || !find_kernel_device(root, found.device->device)) return "";
  const std::string users = users_of(root, found.device->device);
  if (users.empty()) return "";
  return found.device->device + " is cut off, and its users get EIO: " + users +
         "; the kernel keeps its name until that ends, so unmount it";
}

std::optional<KernelDevice> device_called(const std::string& root, const std::string& name) {
  const auto devices = find_kernel_devices(root);
  const auto found = std::ranges::find(devices, name, &KernelDevice::name);
  return found != devices.end() ? std::optional{*found} : std::nullopt;
}

FoundMapping find_mapping(const std::string& root, const std::string& word) {
  const std::string name = word.starts_with("/dev/") ? word.substr(5) : word;
  FoundMapping found{name, find_kernel_device(root, name), {}};
  if (found.device) {
    found.name = found.device->name;
  } else {
    found.device = device_called(root, name);
  }
  found.files = files_of(root, found.name);
  return found;
}

bool is_there(const FoundMapping& found, const Supervisor& supervisor) {
  return found.device || !found.files.empty() || supervisor.runs(found.name);
}

std::string story_of_leftover(const std::string& root, const FoundMapping& found,
                              const Supervisor& supervisor) {
  if (!found.device || !found.files.empty() || supervisor.runs(found.name)) return "";
  for (const CtlProgram& program : find_programs(root)) {
    std::string trouble;  // one that hangs runs
    if (program.name != found.name) continue;
    if (!ask_program(program.socket, "status", trouble).is_null() || !trouble.empty()) return "";
  }
  const std::string users = users_of(root, found.device->device);
  return found.device->device + " is left of '" + found.name +
         "', without a bridge and without a mapping, as after unmap --force; " +
         (users.empty() ? "`rnbd-ctl unmap " + found.name + "` takes it away"
                        : "it goes when nobody uses it: " + users);
}

std::string nothing_named(const std::string& word) {
  return "nothing is mapped as '" + word + "'; `rnbd-ctl client list` tells what is";
}

tl::expected<Mapping, std::string> mapping_in(const FoundMapping& found) {
  if (found.files.empty()) {
    return tl::unexpected("there is no file of the mapping " + found.name +
                          "; rnbd-ctl did not make it");
  }
  std::stringstream text;
  text << std::ifstream{found.files.back()}.rdbuf();
  return read_mapping(found.name, text.str());
}

std::string complaint_about_openers(const std::string& root, const FoundMapping& found) {
  if (!found.device) return "";
  let_udev_look(root, found.device->device);
  const std::string list = users_of(root, found.device->device);
  if (list.empty()) return "";
  return found.device->device + " is used: " + list +
         "; end that first, or write --force, and it gets EIO";
}

std::string take_away(const std::string& root, const FoundMapping& found, Supervisor& supervisor,
                      bool force) {
  std::string wrong = force ? "" : complaint_about_openers(root, found);
  // Requests end first: a bridge without a server waits for them.
  if (wrong.empty() && force && root.empty()) wrong = take_by_force(root, found, supervisor);
  if (wrong.empty()) wrong = supervisor.stop(found.name, force);
  if (wrong.empty()) wrong = take_from_kernel(root, found);
  // While the device is open, the kernel keeps its name, without a disk behind it.
  if (wrong.empty() && found.device && !force && !await_gone(root, found.device->device)) {
    wrong = found.device->device + " is still there: somebody has opened it meanwhile";
  }
  return wrong;
}

}  // namespace rnbd
