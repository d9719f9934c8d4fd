// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/maps.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/backend/specification.hpp"
#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/nbd_disconnect.hpp"
#include "bridge/ctl/openers.hpp"
#include "bridge/ctl/programs.hpp"
#include "bridge/ctl/supervisor.hpp"
#include "bridge/ctl/whole_file.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToDisconnect{10};
constexpr std::chrono::seconds kTimeToTell{2};
/// A bridge learns a size within seconds, and tells the kernel when requests flow.
constexpr std::chrono::seconds kTimeToGrow{60};
constexpr std::chrono::milliseconds kLookEvery{50};
constexpr std::uint64_t kSectorBytes = 512;

tl::unexpected<MapTrouble> map_trouble(std::string text) {
  return tl::unexpected(MapTrouble{1, std::move(text)});
}

// ---- What there is ------------------------------------------------------------------------------

/// A mapping that is there, or was: some of this may lack.
struct Found {
  std::string name;
  std::optional<KernelDevice> device;
  std::vector<std::string> files;  ///< in /run, in /etc
};

std::optional<KernelDevice> device_called(const std::string& root, const std::string& name) {
  const auto devices = find_kernel_devices(root);
  const auto found = std::ranges::find(devices, name, &KernelDevice::name);
  return found != devices.end() ? std::optional{*found} : std::nullopt;
}

std::vector<std::string> files_of(const std::string& root, const std::string& name) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const bool persist : {false, true}) {
    const std::string path = path_of_mapping(root, name, persist);
    if (fs::exists(path, ignored)) files.push_back(path);
  }
  return files;
}

/// By the name of the mapping, or nbdN, or /dev/nbdN.
Found find_mapping(const std::string& root, const std::string& word) {
  const std::string name = word.starts_with("/dev/") ? word.substr(5) : word;
  Found found{name, find_kernel_device(root, name), {}};
  if (found.device) {
    found.name = found.device->name;
  } else {
    found.device = device_called(root, name);
  }
  found.files = files_of(root, found.name);
  return found;
}

/// Of the mappings that have a file.
std::set<std::string> names_with_files(const std::string& root) {
  std::set<std::string> names;
  for (const bool persist : {false, true}) {
    const fs::path folder = fs::path{path_of_mapping(root, "x", persist)}.parent_path();
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{folder, error}) {
      if (entry.path().extension() == ".conf") names.insert(entry.path().stem());
    }
  }
  return names;
}

bool is_there(const Found& found, const Supervisor& supervisor) {
  return found.device || !found.files.empty() || supervisor.runs(found.name);
}

std::string nothing_named(const std::string& word) {
  return "nothing is mapped as '" + word + "'; `rnbd-ctl client list` tells what is";
}

// ---- Files --------------------------------------------------------------------------------------

/// "" or the obstacle.
std::string write_mapping(const std::string& path, const std::string& text) {
  const fs::path folder = fs::path{path}.parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return folder.string() + ": " + error.message();
  const auto written = write_file(path, text, 0644);
  return written ? "" : written.error();
}

std::string remove_mapping_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    fs::remove(path, error);
    if (error) return path + ": " + error.message();
  }
  return "";
}

tl::expected<Mapping, std::string> mapping_in(const Found& found) {
  if (found.files.empty()) {
    return tl::unexpected("there is no file of the mapping " + found.name +
                          "; rnbd-ctl did not make it");
  }
  std::stringstream text;
  text << std::ifstream{found.files.back()}.rdbuf();
  return read_mapping(found.name, text.str());
}

// ---- Taking away --------------------------------------------------------------------------------

std::string complaint_about_openers(const std::string& root, const Found& found) {
  if (!found.device) return "";
  std::string list;
  for (const std::string& opener : openers_of(root, found.device->device)) {
    list += (list.empty() ? "" : ", ") + opener;
  }
  if (list.empty()) return "";
  return found.device->device + " is used: " + list +
         "; end that first, or write --force, and it gets EIO";
}

bool await_gone(const std::string& root, const std::string& device) {
  const auto limit = steady_clock::now() + kTimeToDisconnect;
  while (find_kernel_device(root, device)) {
    if (steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(kLookEvery);
  }
  return true;
}

/// With or without a bridge that works. "" or the obstacle.
std::string take_from_kernel(const std::string& root, const Found& found) {
  if (!found.device || !find_kernel_device(root, found.device->device)) return "";
  if (!root.empty()) return found.device->device + ": not a device of this machine's kernel";
  return disconnect_kernel_device(found.device->device);
}

/// "" or the obstacle. The kernel tells the bridge that its disk goes. One that reads nothing any
/// more holds that up, and all generic netlink of the machine with it, until it is killed.
std::string take_by_force(const std::string& root, const Found& found, Supervisor& supervisor) {
  std::packaged_task<std::string()> task{[=] { return take_from_kernel(root, found); }};
  auto taken = task.get_future();
  std::thread{std::move(task)}.detach();
  if (taken.wait_for(kTimeToTell) == std::future_status::ready) return taken.get();
  supervisor.kill(found.name);
  if (taken.wait_for(kTimeToDisconnect) == std::future_status::ready) return taken.get();
  return "the kernel cannot tell the bridge of " + found.device->device +
         " that its disk goes, because that reads nothing any more; kill that process";
}

/// "" or the obstacle. By force the requests are ended first: a bridge without a server waits for
/// them.
std::string take_away(const std::string& root, const Found& found, Supervisor& supervisor,
                      bool force) {
  std::string wrong = force ? "" : complaint_about_openers(root, found);
  if (wrong.empty() && force && root.empty()) wrong = take_by_force(root, found, supervisor);
  if (wrong.empty()) wrong = supervisor.stop(found.name, force);
  if (wrong.empty()) wrong = take_from_kernel(root, found);
  // While somebody has it open the kernel keeps its name, with nothing behind it.
  if (wrong.empty() && found.device && !force && !await_gone(root, found.device->device)) {
    wrong = found.device->device + " is still there: somebody has opened it meanwhile";
  }
  return wrong;
}

// ---- map ----------------------------------------------------------------------------------------

std::string refuse_second(const std::string& root, const Mapping& mapping,
                          const Supervisor& supervisor) {
  const Found found = find_mapping(root, mapping.name);
  if (!is_there(found, supervisor)) return "";
  return "something is mapped as '" + mapping.name + "' already" +
         (found.device ? ", " + found.device->device : "") +
         "; unmap it, or write another --name NAME";
}

/// "" or the obstacle; then nothing is left of it.
std::string begin(const std::string& root, const Mapping& mapping, Supervisor& supervisor,
                  bool persist) {
  const std::string path = path_of_mapping(root, mapping.name, persist);
  std::string wrong = persist ? supervisor.enable(mapping.name) : "";
  if (wrong.empty()) wrong = write_mapping(path, file_of(mapping));
  if (wrong.empty()) wrong = supervisor.start(mapping);
  if (wrong.empty()) return "";
  supervisor.stop(mapping.name, /*force=*/true);
  if (persist) supervisor.disable(mapping.name);
  remove_mapping_files({path});
  return wrong;
}

MapAnswer device_line(const std::string& root, const std::string& name) {
  const auto device = device_called(root, name);
  if (!device)
    return map_trouble("the bridge runs, but the kernel has no device of '" + name + "'");
  return "/dev/" + device->device + "\n";
}

// ---- resize -------------------------------------------------------------------------------------

std::uint64_t size_in_kernel(const std::string& root, const std::string& device) {
  std::uint64_t sectors = 0;
  std::ifstream{root + "/sys/block/" + device + "/size"} >> sectors;
  return sectors * kSectorBytes;
}

std::string in_bytes(std::uint64_t size) { return std::to_string(size) + " bytes"; }

/// As the bridge of the mapping knows it.
tl::expected<std::uint64_t, std::string> size_at_server(const std::string& root,
                                                        const std::string& name) {
  for (const CtlProgram& program : find_programs(root)) {
    if (program.name != name) continue;
    const auto answer = ask_control_socket(program.socket, "status");
    if (!answer) return tl::unexpected(program.socket + ": " + answer.error().text);
    const auto status = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    const auto device = nlohmann::json::json_pointer{"/devices/0/size"};
    if (status.contains(device) && status[device].is_number_unsigned()) return status[device];
    return tl::unexpected("the bridge of " + name + " has no device open");
  }
  return tl::unexpected("the bridge of " + name + " cannot be asked; write the size, too");
}

tl::expected<std::uint64_t, std::string> wanted_size(const CtlAction& action,
                                                     const std::string& name) {
  if (action.names.size() < 2) return size_at_server(action.root, name);
  const std::string unit =
      action.unit == '\0' || action.unit == 'B' ? "" : std::string{action.unit};
  auto size = parse_size(action.names[1] + unit);
  if (!size) return tl::unexpected(size.error().text);
  return *size;
}

}  // namespace

MapAnswer map_device(const CtlAction& action) {
  const auto mapping = mapping_of(action);
  if (!mapping) return tl::unexpected(MapTrouble{2, mapping.error()});
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  std::string wrong = refuse_second(action.root, *mapping, *supervisor);
  if (wrong.empty()) wrong = begin(action.root, *mapping, *supervisor, action.persist);
  if (!wrong.empty()) return map_trouble(wrong);
  return device_line(action.root, mapping->name);
}

MapAnswer unmap_device(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, "");
  const Found found = find_mapping(action.root, action.names.front());
  if (!is_there(found, *supervisor)) return map_trouble(nothing_named(action.names.front()));
  std::string wrong = take_away(action.root, found, *supervisor, action.force);
  if (!wrong.empty()) return map_trouble(wrong);
  const bool persists = std::ranges::find(found.files, path_of_mapping(action.root, found.name,
                                                                       true)) != found.files.end();
  if (persists) wrong = supervisor->disable(found.name);
  if (wrong.empty()) wrong = remove_mapping_files(found.files);
  if (!wrong.empty()) return map_trouble(wrong);
  return "";
}

MapAnswer remap_device(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  const Found found = find_mapping(action.root, action.names.front());
  if (!is_there(found, *supervisor)) return map_trouble(nothing_named(action.names.front()));
  const auto mapping = mapping_in(found);
  if (!mapping) return map_trouble(mapping.error());
  std::string wrong = take_away(action.root, found, *supervisor, action.force);
  if (wrong.empty()) wrong = supervisor->start(*mapping);
  if (!wrong.empty()) return map_trouble(wrong);
  return device_line(action.root, found.name);
}

MapAnswer resize_device(const CtlAction& action) {
  const Found found = find_mapping(action.root, action.names.front());
  if (!found.device) return map_trouble(nothing_named(action.names.front()));
  const auto wanted = wanted_size(action, found.name);
  if (!wanted) return map_trouble(wanted.error());
  const std::string& device = found.device->device;
  const auto limit = steady_clock::now() + kTimeToGrow;
  std::uint64_t size = size_in_kernel(action.root, device);
  if (*wanted < size) {
    return map_trouble(device + " has " + in_bytes(size) + ", and a disk in use cannot shrink");
  }
  while (size < *wanted && steady_clock::now() < limit) {
    std::this_thread::sleep_for(kLookEvery);
    size = size_in_kernel(action.root, device);
  }
  if (size >= *wanted) return device + " has " + in_bytes(size) + "\n";
  return map_trouble(device + " has " + in_bytes(size) + ", not " + in_bytes(*wanted) +
                     "; enlarge what the server exports first");
}

std::string mapping_called(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, "");
  const Found found = find_mapping(action.root, action.names.front());
  return is_there(found, *supervisor) ? found.name : "";
}

MapAnswer recover_devices(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  const bool all = action.names.front() == "all";
  const auto names =
      all ? names_with_files(action.root) : std::set<std::string>{mapping_called(action)};
  std::string told, troubles;
  for (const std::string& name : names) {
    if (supervisor->runs(name)) continue;
    const auto mapping = mapping_in(find_mapping(action.root, name));
    const std::string wrong = mapping ? supervisor->start(*mapping) : mapping.error();
    const auto line = wrong.empty() ? device_line(action.root, name) : map_trouble(wrong);
    line ? told += * line : troubles += (troubles.empty() ? "" : "; ") + line.error().text;
  }
  if (!troubles.empty()) return map_trouble(troubles);
  return told;
}

}  // namespace rnbd
