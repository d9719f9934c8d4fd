// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/maps.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "bridge/backend/specification.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/fstab.hpp"
#include "bridge/ctl/hidden.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/shared_bridge.hpp"
#include "bridge/ctl/supervisor.hpp"
#include "bridge/ctl/whole_file.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToDisconnect{10};
constexpr std::chrono::seconds kTimeToTell{2};
constexpr std::chrono::seconds kTimeForUdev{5};
constexpr std::chrono::milliseconds kLookForItsEnd{50};
/// udev tells of a new disk within a second or two.
constexpr double kTimeForLink = 5;  ///< seconds
/// A bridge learns a size within seconds, and tells the kernel when requests flow.
constexpr double kTimeToGrow = 30;  ///< seconds
constexpr std::chrono::milliseconds kLookEvery{50};
constexpr std::uint64_t kSectorBytes = 512;

CtlOutcome refused(std::string why) { return {1, "", std::move(why)}; }

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

/// Nothing: there is no file that can be read.
std::optional<std::string> export_in_file(const std::string& root, const std::string& name) {
  const auto mapping = mapping_in(find_mapping(root, name));
  const auto uri = mapping ? parse_device_uri(mapping->uri) : tl::unexpected(mapping.error());
  return uri ? std::optional{uri->device} : std::nullopt;
}

/// The process that serves a mapping, or would: see bridge_of(). One without a file is asked for.
std::string process_of(const std::string& root, const FoundMapping& found) {
  const auto mapping = mapping_in(found);
  if (mapping) return bridge_of(*mapping);
  const std::string key = found.device ? bridge_serving(root, found.name) : "";
  return key.empty() ? found.name : key;
}

// ---- Disks of the kernel ------------------------------------------------------------------------

/// The number of a disk that goes may be another disk's at once.
bool is_in_kernel(const std::string& root, const FoundMapping& found) {
  if (!found.device) return false;
  const auto now = find_kernel_device(root, found.device->device);
  return now && now->name == found.device->name;
}

bool await_gone(const std::string& root, const FoundMapping& found) {
  const auto limit = steady_clock::now() + kTimeToDisconnect;
  while (is_in_kernel(root, found)) {
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

/// "" or the obstacle. The bridge may work, or be dead.
std::string take_from_kernel(const std::string& root, const FoundMapping& found) {
  if (!is_in_kernel(root, found)) return "";
  if (!root.empty()) return found.device->device + ": not a device of this machine's kernel";
  const std::string wrong = disconnect_kernel_device(found.device->device);
  return is_in_kernel(root, found) ? wrong : "";
}

/// "" or the obstacle. The kernel tells the bridge that the disk is removed. One that reads nothing
/// any more holds that up, and all generic netlink of the machine with it, until it is killed.
std::string take_by_force(const std::string& root, const FoundMapping& found,
                          const std::string& process, Supervisor& supervisor) {
  std::packaged_task<std::string()> task{[=] { return take_from_kernel(root, found); }};
  auto taken = task.get_future();
  std::thread{std::move(task)}.detach();
  if (taken.wait_for(kTimeToTell) == std::future_status::ready) return taken.get();
  supervisor.kill(process);
  if (taken.wait_for(kTimeToDisconnect) == std::future_status::ready) return taken.get();
  return "the kernel cannot tell the bridge of " + found.device->device +
         " that its disk goes, because that reads nothing any more; kill that process";
}

bool is_there(const FoundMapping& found, const Supervisor& supervisor) {
  return found.device || !found.files.empty() || supervisor.runs(found.name);
}

/// "", or why a disk of the kernel cannot be served again, and how it goes: it has no bridge, nor a
/// file that would start one.
std::string story_of_leftover(const std::string& root, const FoundMapping& found,
                              const Supervisor& supervisor) {
  if (!found.device || !found.files.empty() || supervisor.runs(found.name)) return "";
  if (is_bridge_key(process_of(root, found))) return "";
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

/// "" or the users of its device.
std::string complaint_about_openers(const std::string& root, const FoundMapping& found) {
  if (!found.device) return "";
  let_udev_look(root, found.device->device);
  const std::string list = users_of(root, found.device->device);
  if (list.empty()) return "";
  return found.device->device + " is used: " + list +
         "; end that first, or write --force, and it gets EIO";
}

/// "" or the users that keep the name of a disk that was taken away by force.
std::string warning_about_users(const std::string& root, const FoundMapping& found) {
  if (!is_in_kernel(root, found)) return "";
  const std::string users = users_of(root, found.device->device);
  if (users.empty()) return "";
  return found.device->device + " is cut off, and its users get EIO: " + users +
         "; the kernel keeps its name until that ends, so unmount it";
}

/// While the device is open, the kernel keeps its name, without a disk behind it.
std::string complaint_about_rest(const std::string& root, const FoundMapping& found, bool force) {
  if (force || await_gone(root, found)) return "";
  return found.device->device + " is still there: somebody has opened it meanwhile";
}

/// The bridge that is shared goes on for its other disks. It leaves in the kernel what it has not
/// joined: a disk that it refuses, or that waits for its server. "" or the obstacle.
std::string take_from_shared(const std::string& root, const FoundMapping& found,
                             const std::string& key, Supervisor& supervisor, bool force) {
  const DiskRemoval removal =
      remove_disk(root, key, found.name, force ? kTimeToTell : kTimeToDisconnect);
  if (removal == DiskRemoval::done) return take_from_kernel(root, found);
  if (!force && removal == DiskRemoval::hangs) {
    return "its bridge, " + Supervisor::unit_of(key) +
           ", does not take it away; write --force, and its users get EIO";
  }
  return force && root.empty() ? take_by_force(root, found, key, supervisor)
                               : take_from_kernel(root, found);
}

/// A bridge that was killed, or had died, is needed by the disks that have a file. "" or the
/// obstacle.
std::string start_for_others(const std::string& root, const std::string& key,
                             Supervisor& supervisor) {
  for (const bool persist : {false, true}) {
    const auto others = mappings_of_bridge(root, key, persist);
    if (others.empty()) continue;
    return supervisor.runs(key) ? "" : supervisor.start(others.front());
  }
  return "";
}

/// After a failure: the bridge of the file serves the disk, and all others, as before. `wrong`, and
/// what is not so.
std::string serve_as_before(const std::string& root, const FoundMapping& found,
                            const std::string& key, Supervisor& supervisor,
                            const std::string& wrong) {
  std::string trouble = start_for_others(root, key, supervisor);
  const auto mapping = mapping_in(found);
  if (trouble.empty() && mapping) trouble = add_disk(root, *mapping, /*again=*/false);
  if (trouble.empty() && !mapping) trouble = mapping.error();
  return trouble.empty() ? wrong : wrong + "; its bridge does not serve it now: " + trouble;
}

/// Ends its bridge, unless others share it, and disconnects its device. Without `force` it refuses
/// while the device is in use. Returns "" or the obstacle.
std::string take_away(const std::string& root, const FoundMapping& found, Supervisor& supervisor,
                      bool force) {
  const std::string process = process_of(root, found);
  const bool shared = is_bridge_key(process);
  const auto lock = shared ? lock_bridge(root, process) : rtrs::OwnedFd{};
  if (!lock) return lock.error();
  std::string wrong = force ? "" : complaint_about_openers(root, found);
  if (!wrong.empty()) return wrong;
  if (shared) {
    wrong = take_from_shared(root, found, process, supervisor, force);
    if (wrong.empty()) wrong = complaint_about_rest(root, found, force);
    return wrong.empty() ? "" : serve_as_before(root, found, process, supervisor, wrong);
  }
  // Requests end first: a bridge without a server waits for them.
  if (force && root.empty()) wrong = take_by_force(root, found, process, supervisor);
  if (wrong.empty()) wrong = supervisor.stop(process, force);
  if (wrong.empty()) wrong = take_from_kernel(root, found);
  return wrong.empty() ? complaint_about_rest(root, found, force) : wrong;
}

// ---- map ----------------------------------------------------------------------------------------

std::string refuse_second(const std::string& root, const Mapping& mapping,
                          const Supervisor& supervisor) {
  const FoundMapping found = find_mapping(root, mapping.name);
  if (!is_there(found, supervisor)) return "";
  const std::string leftover = story_of_leftover(root, found, supervisor);
  if (!leftover.empty()) return leftover + "; or write another --name NAME";
  return "something is mapped as '" + mapping.name + "' already" +
         (found.device ? ", " + found.device->device : "") +
         "; unmap it, or write another --name NAME";
}

/// True: it is mapped until the next boot.
bool ends_with_boot(const std::string& root, const FoundMapping& found) {
  return found.device &&
         found.files == std::vector<std::string>{path_of_mapping(root, found.name, false)};
}

/// "" or the words that make it last, when these are others than it was mapped with.
std::string advice_to_keep(const FoundMapping& found, const Mapping& wanted) {
  const auto there = mapping_in(found);
  if (!there || *there == wanted) return "";
  return "; " + command_for(*there) + " makes it last as it is";
}

/// The mapping comes at each boot from now on; its bridge and its device notice nothing. "" or the
/// obstacle; then it is as before. With lock_bridge(), if it shares one.
std::string keep(const std::string& root, const FoundMapping& found, const Mapping& mapping,
                 Supervisor& supervisor) {
  const std::string process = bridge_of(mapping);
  std::string wrong = supervisor.enable(process);
  if (!wrong.empty()) return wrong;
  const std::string path = path_of_mapping(root, mapping.name, true);
  wrong = write_mapping(path, file_of(mapping));
  if (wrong.empty()) return remove_mapping_files(found.files);
  remove_mapping_files({path});
  if (mapping.bridge.empty())
    supervisor.disable(process);
  else
    end_if_unused(root, process, supervisor, {.lasting = true});
  return wrong;
}

/// Makes a bridge that runs serve one more mapping, see add_disk(). "" or the obstacle.
std::string serve_too(const std::string& root, const Mapping& mapping, const Supervisor& supervisor,
                      bool again) {
  const std::string wrong = add_disk(root, mapping, again);
  if (wrong.empty()) return "";
  return mapping.name + ": " + wrong +
         " (the log of its bridge: " + supervisor.log_of(mapping.bridge) + ")";
}

/// Starts the bridge of a mapping that has a file, or makes the one that runs serve it, too. "" or
/// the obstacle.
std::string serve(const std::string& root, const Mapping& mapping, Supervisor& supervisor) {
  if (mapping.bridge.empty()) return supervisor.start(mapping);
  auto lock = lock_bridge(root, mapping.bridge);
  if (!lock) return lock.error();
  // The last disk of the bridge may have gone while another command had the lock.
  if (files_of_mapping(root, mapping.name).empty()) return nothing_named(mapping.name);
  const bool runs = supervisor.runs(mapping.bridge);
  const std::string wrong = supervisor.start(mapping);
  lock->reset();
  return wrong.empty() ? serve_too(root, mapping, supervisor, /*again=*/runs) : wrong;
}

/// Writes the file of a mapping whose name is free. "" or the obstacle.
std::string claim(const std::string& root, const Mapping& mapping, const Supervisor& supervisor,
                  bool persist) {
  const auto lock = lock_names(root);
  if (!lock) return lock.error();
  const std::string wrong = refuse_second(root, mapping, supervisor);
  return wrong.empty()
             ? write_mapping(path_of_mapping(root, mapping.name, persist), file_of(mapping))
             : wrong;
}

/// The same for one that shares a bridge, of which the lock is given.
std::string begin_shared(const std::string& root, const Mapping& mapping, Supervisor& supervisor,
                         bool persist, rtrs::OwnedFd lock) {
  // From here on nobody ends the bridge.
  std::string wrong = claim(root, mapping, supervisor, persist);
  if (!wrong.empty()) return wrong;
  if (persist) wrong = supervisor.enable(mapping.bridge);
  if (wrong.empty()) wrong = supervisor.start(mapping);
  lock.reset();
  if (wrong.empty()) wrong = serve_too(root, mapping, supervisor, /*again=*/false);
  if (wrong.empty()) return "";
  const auto again = lock_bridge(root, mapping.bridge);
  remove_mapping_files({path_of_mapping(root, mapping.name, persist)});
  if (!has_other_disk(root, mapping))
    remove_disk(root, mapping.bridge, mapping.name, kTimeToDisconnect);
  end_if_unused(root, mapping.bridge, supervisor, {.lasting = persist, .force = true});
  return wrong;
}

/// "" or the obstacle; then nothing is left of it.
std::string begin(const std::string& root, const Mapping& mapping, Supervisor& supervisor,
                  bool persist, rtrs::OwnedFd lock) {
  if (!mapping.bridge.empty())
    return begin_shared(root, mapping, supervisor, persist, std::move(lock));
  std::string wrong = claim(root, mapping, supervisor, persist);
  if (!wrong.empty()) return wrong;
  if (persist) wrong = supervisor.enable(mapping.name);
  if (wrong.empty()) wrong = supervisor.start(mapping);
  if (wrong.empty()) return "";
  supervisor.stop(mapping.name, /*force=*/true);
  if (persist) supervisor.disable(mapping.name);
  remove_mapping_files({path_of_mapping(root, mapping.name, persist)});
  return wrong;
}

/// The device can be used by its link, too, when this returns.
tl::expected<std::string, std::string> device_line(const std::string& root, const std::string& name,
                                                   double patience = kTimeForLink) {
  const auto device = device_called(root, name);
  if (!device)
    return tl::unexpected("the bridge runs, but the kernel has no device of '" + name + "'");
  const std::string missing = await_link(root, *device, patience);
  if (!missing.empty()) complain(missing);
  return "/dev/" + device->device + "\n";
}

/// The bridge asks for the right to write, and takes less.
void warn_of_read_only(const std::string& root, const std::string& name,
                       const Supervisor& supervisor) {
  const auto device = device_called(root, name);
  if (!device || !is_read_only(root, device->device)) return;
  complain("/dev/" + device->device +
           " is read-only: another client writes to the disk, or its server exports it so; "
           "the log tells which: " +
           supervisor.log_of(process_of(root, find_mapping(root, name))));
}

// ---- unmap --------------------------------------------------------------------------------------

bool lasts(const std::string& root, const FoundMapping& found) {
  return std::ranges::count(found.files, path_of_mapping(root, found.name, true)) != 0;
}

/// "" or the obstacle.
std::string unmap_own(const std::string& root, const FoundMapping& found, Supervisor& supervisor,
                      bool force) {
  std::string wrong = take_away(root, found, supervisor, force);
  if (wrong.empty() && lasts(root, found)) wrong = supervisor.disable(found.name);
  return wrong.empty() ? remove_mapping_files(found.files) : wrong;
}

/// Another command may have taken the name meanwhile: its file stays.
void restore(const std::string& root, const std::vector<std::string>& paths,
             const Mapping& mapping) {
  const auto lock = lock_names(root);
  if (!files_of_mapping(root, mapping.name).empty()) return;
  for (const std::string& path : paths) write_mapping(path, file_of(mapping));
}

/// The same for one that shares a bridge. The files go first: a bridge that starts meanwhile does
/// without the disk.
std::string unmap_shared(const std::string& root, const FoundMapping& found, const std::string& key,
                         Supervisor& supervisor, bool force) {
  std::string wrong = force ? "" : complaint_about_openers(root, found);
  if (!wrong.empty()) return wrong;
  const auto mapping = mapping_in(found);
  wrong = remove_mapping_files(found.files);
  if (wrong.empty()) wrong = take_from_shared(root, found, key, supervisor, force);
  if (wrong.empty()) wrong = complaint_about_rest(root, found, force);
  if (wrong.empty())
    wrong = end_if_unused(root, key, supervisor, {.lasting = lasts(root, found), .force = force});
  if (wrong.empty()) wrong = start_for_others(root, key, supervisor);
  if (wrong.empty()) forget_if_ended(root, key, supervisor);
  if (wrong.empty()) return "";
  if (mapping) restore(root, found.files, *mapping);
  return serve_as_before(root, found, key, supervisor, wrong);
}

/// The file is the administrator's, so that nothing is changed in it.
void warn_of_fstab(const std::string& root, const FoundMapping& found) {
  const std::string uuid = found.device ? found.device->uuid : "";
  for (const FstabLine& line : fstab_lines_of(root, {"", uuid, found.name})) {
    complain(std::string{"this line stays in /etc/fstab"} +
             (line.awaited
                  ? ", and the next boot waits for its disk; remove it, unless you map the "
                    "disk again:\n"
                  : ":\n") +
             line.text);
  }
}

// ---- remap --------------------------------------------------------------------------------------

struct Remapped {
  FoundMapping found;
  Mapping mapping;
};

/// Changes nothing.
tl::expected<Remapped, std::string> look_before_remap(const CtlAction& action,
                                                      const std::string& name,
                                                      const Supervisor& supervisor) {
  FoundMapping found = find_mapping(action.root, name);
  if (!is_there(found, supervisor)) return tl::unexpected(nothing_named(name));
  std::string wrong = story_of_leftover(action.root, found, supervisor);
  if (!wrong.empty()) return tl::unexpected(wrong);
  auto mapping = mapping_in(found);
  if (!mapping) return tl::unexpected(mapping.error());
  wrong = action.force ? "" : complaint_about_openers(action.root, found);
  if (!wrong.empty()) return tl::unexpected(wrong);
  return Remapped{std::move(found), *std::move(mapping)};
}

/// A bridge of which every disk was taken away ends, and its session with it.
void end_emptied_bridges(const std::string& root, const std::vector<Remapped>& all,
                         Supervisor& supervisor) {
  std::set<std::string> keys;
  for (const Remapped& one : all) keys.insert(one.mapping.bridge);
  keys.erase("");
  for (const std::string& key : keys) {
    const auto lock = lock_bridge(root, key);
    const auto is_taken = [&](const Mapping& mapping) {
      return std::ranges::any_of(
          all, [&](const Remapped& one) { return one.mapping.name == mapping.name; });
    };
    const bool emptied = std::ranges::all_of(mappings_of_bridge(root, key, true), is_taken) &&
                         std::ranges::all_of(mappings_of_bridge(root, key, false), is_taken);
    if (lock && emptied) supervisor.stop(key, /*force=*/true);
  }
}

// ---- resize -------------------------------------------------------------------------------------

std::uint64_t size_in_kernel(const std::string& root, const std::string& device) {
  std::uint64_t sectors = 0;
  std::ifstream{root + "/sys/block/" + device + "/size"} >> sectors;
  return sectors * kSectorBytes;
}

std::string in_bytes(std::uint64_t size) { return std::to_string(size) + " bytes"; }

/// Asks the bridge of the mapping for its status.
tl::expected<CtlReport, std::string> ask_bridge(const std::string& root, const std::string& name) {
  const std::string process = process_of(root, find_mapping(root, name));
  for (const CtlProgram& program : find_programs(root)) {
    if (program.name != process) continue;
    const auto answer = ask_control_socket(program.socket, "status");
    if (!answer) return tl::unexpected(program.socket + ": " + answer.error().text);
    return CtlReport{program, CtlJson::parse(*answer, nullptr, /*allow_exceptions=*/false), {}};
  }
  return tl::unexpected("the bridge of " + name + " cannot be asked; write the size, too");
}

/// The size as the bridge of the mapping knows it.
tl::expected<std::uint64_t, std::string> size_at_server(const std::string& root,
                                                        const std::string& name) {
  const auto report = ask_bridge(root, name);
  return report ? size_told_by(*report, name) : tl::unexpected(report.error());
}

/// "" or why not all of the disk can be used, however large the kernel has it.
std::string complaint_about_shrinking(const std::string& root, const std::string& name) {
  const auto report = ask_bridge(root, name);
  if (!report || !report->status.is_object()) return "";
  for (const CtlJson& row : take_inventory({*report}, {}, CtlSide::client).devices) {
    if (row["program"] == name && row["state"] == "shrunk")
      return name + ": " + row["trouble"].get<std::string>();
  }
  return "";
}

/// The reason why the kernel has a smaller size than is wanted.
std::string obstacle_to_growth(const tl::expected<std::uint64_t, std::string>& at_server,
                               std::uint64_t wanted) {
  if (!at_server) return at_server.error();
  if (*at_server < wanted) {
    return "its server has " + in_bytes(*at_server) + ": enlarge what that exports first";
  }
  return "its server has " + in_bytes(*at_server) +
         ", and the bridge tells the kernel when requests flow again";
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

tl::expected<std::uint64_t, std::string> size_told_by(const CtlReport& report,
                                                      const std::string& name) {
  auto devices = take_inventory({report}, {}, CtlSide::client).devices;
  std::erase_if(devices, [&](const CtlJson& row) { return row["program"] != name; });
  if (devices.empty() || !devices.front()["size"].is_number_unsigned()) {
    return tl::unexpected("the bridge of " + name + " has no device open");
  }
  const CtlJson& device = devices.front();
  if (device["state"] == "open") return device["size"].get<std::uint64_t>();
  const std::string trouble = device["trouble"].is_string() ? device["trouble"] : "";
  return tl::unexpected("its size at the server is not known: " + name + " is " +
                        device["state"].get<std::string>() + ", " + trouble);
}

CtlOutcome map_device(const CtlAction& action) {
  const auto patience = seconds_to_wait(action, kTimeForLink);
  if (!patience) return {2, "", patience.error()};
  auto mapping = mapping_of(action);
  if (!mapping) return {2, "", mapping.error()};
  auto lock = mapping->bridge.empty() ? rtrs::OwnedFd{} : lock_bridge(action.root, mapping->bridge);
  if (!lock) return refused(lock.error());
  if (!mapping->bridge.empty() && has_twin(action.root, *mapping)) {
    mapping->bridge.clear();
    lock->reset();
  }
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  const FoundMapping found = find_mapping(action.root, mapping->name);
  const bool lasts_now = action.persist && ends_with_boot(action.root, found);
  const std::string advice = lasts_now ? advice_to_keep(found, *mapping) : "";
  std::string wrong;
  if (lasts_now && advice.empty()) {
    wrong = keep(action.root, found, *mapping, *supervisor);
    lock->reset();
  } else {
    wrong = begin(action.root, *mapping, *supervisor, action.persist, *std::move(lock));
  }
  if (!wrong.empty()) return refused(wrong + advice);
  const auto line = device_line(action.root, mapping->name, *patience);
  if (!line) return refused(line.error());
  // Not on standard output, which scripts read.
  if (action.access != "ro") warn_of_read_only(action.root, mapping->name, *supervisor);
  if (action.persist) {
    complain("to mount it at boot, write into /etc/fstab, with its place and its file system:\n" +
             fstab_line(mapping->name, Supervisor::unit_of(bridge_of(*mapping))));
  }
  return {0, *line, ""};
}

CtlOutcome unmap_device(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, "");
  const std::string& word = action.names.front();
  FoundMapping found = find_mapping(action.root, word);
  if (!is_there(found, *supervisor)) return refused(nothing_named(word));
  const std::string process = process_of(action.root, found);
  const bool shared = is_bridge_key(process);
  const auto lock = shared ? lock_bridge(action.root, process) : rtrs::OwnedFd{};
  if (!lock) return refused(lock.error());
  if (shared) {
    const std::string before = std::exchange(found, find_mapping(action.root, word)).name;
    if (!is_there(found, *supervisor)) return refused(nothing_named(word));
    if (found.name != before || process_of(action.root, found) != process)
      return refused("'" + word + "' was mapped anew meanwhile; look at it, and write it again");
  }
  std::string wrong = shared ? unmap_shared(action.root, found, process, *supervisor, action.force)
                             : unmap_own(action.root, found, *supervisor, action.force);
  if (!wrong.empty()) return refused(wrong);
  const std::string users = action.force ? warning_about_users(action.root, found) : "";
  if (!users.empty()) complain(users);
  warn_of_fstab(action.root, found);
  return {0, (found.device ? found.device->device + " of " : "") + found.name + ": unmapped\n", ""};
}

CtlOutcome remap_devices(const CtlAction& action, const std::vector<std::string>& names) {
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  std::vector<Remapped> all;
  std::vector<std::string> troubles;
  for (const std::string& name : names) {
    auto one = look_before_remap(action, name, *supervisor);
    if (one) {
      all.push_back(*std::move(one));
    } else {
      troubles.push_back(one.error());
    }
  }
  if (!troubles.empty()) return refused(joined(troubles, "; "));
  // Every disk goes before the first comes: nothing of the old session is left then.
  std::erase_if(all, [&](const Remapped& one) {
    const std::string wrong = take_away(action.root, one.found, *supervisor, action.force);
    if (!wrong.empty()) troubles.push_back(wrong);
    return !wrong.empty();
  });
  end_emptied_bridges(action.root, all, *supervisor);
  std::string told;
  for (const Remapped& one : all) {
    const std::string wrong = serve(action.root, one.mapping, *supervisor);
    const auto line =
        wrong.empty() ? device_line(action.root, one.found.name) : tl::unexpected(wrong);
    if (line)
      told += *line;
    else
      troubles.push_back(line.error());
  }
  if (!troubles.empty()) return refused(joined(troubles, "; "));
  return {0, told, ""};
}

CtlOutcome resize_device(const CtlAction& action) {
  const auto patience = seconds_to_wait(action, kTimeToGrow);
  if (!patience) return {2, "", patience.error()};
  const FoundMapping found = find_mapping(action.root, action.names.front());
  if (!found.device) {
    return refused("the kernel has no device of '" + action.names.front() +
                   "' yet; `rnbd-ctl client list` tells what its bridge waits for");
  }
  const std::string shrunk = complaint_about_shrinking(action.root, found.name);
  if (!shrunk.empty()) return refused(shrunk);
  const auto wanted = wanted_size(action, found.name);
  if (!wanted) return refused(wanted.error());
  const std::string& device = found.device->device;
  std::uint64_t size = size_in_kernel(action.root, device);
  if (*wanted < size) {
    return refused(device + " has " + in_bytes(size) + ", and a disk in use cannot shrink");
  }
  if (size < *wanted) {
    complain(device + " has " + in_bytes(size) + "; waiting for " + in_bytes(*wanted) + ", " +
             in_seconds(*patience) + " at most");
  }
  const auto limit = steady_clock::now() + std::chrono::duration<double>(*patience);
  while (size < *wanted && steady_clock::now() < limit) {
    std::this_thread::sleep_for(kLookEvery);
    size = size_in_kernel(action.root, device);
  }
  if (size >= *wanted) return {0, device + " has " + in_bytes(size) + "\n", ""};
  return refused(device + " has " + in_bytes(size) + ", not " + in_bytes(*wanted) + ", after " +
                 in_seconds(*patience) + "; " +
                 obstacle_to_growth(size_at_server(action.root, found.name), *wanted));
}

std::string nothing_named(const std::string& word) {
  return "nothing is mapped as '" + word + "'; `rnbd-ctl client list` tells what is";
}

std::string mapping_called(const CtlAction& action, const std::string& name) {
  const auto supervisor = choose_supervisor(action.root, "");
  const FoundMapping found = find_mapping(action.root, name);
  return is_there(found, *supervisor) ? found.name : "";
}

void add_exports_of_mappings(const std::string& root, CtlInventory& inventory) {
  for (CtlJson& row : inventory.devices) {
    const bool is_disk = row["direction"] == "import" && row["devname"].is_string();
    if (!is_disk || !row["mapping_path"].is_null()) continue;
    if (const auto name = export_in_file(root, row["program"])) row["mapping_path"] = *name;
  }
}

std::set<std::string> mappings_of_export(const std::string& root, const std::string& name,
                                         const CtlInventory& inventory) {
  std::set<std::string> mappings;
  for (const std::string& each : names_of_mappings(root)) {
    const auto its = export_in_file(root, each);
    if (its && plain_path(*its) == plain_path(name)) mappings.insert(each);
  }
  for (const CtlJson& row : inventory.devices) {
    const bool is_it = row["mapping_path"] == name || row["uuid"] == name;
    if (!is_it || row["direction"] != "import") continue;
    const std::string program = row["program"];
    if (device_called(root, program)) mappings.insert(program);
  }
  return mappings;
}

CtlOutcome recover_devices(const CtlAction& action) {
  const auto supervisor = choose_supervisor(action.root, action.bridge);
  const bool all = action.names.front() == "all";
  const auto names = all ? names_of_mappings(action.root)
                         : std::set<std::string>{mapping_called(action, action.names.front())};
  std::string told;
  std::vector<std::string> troubles;
  for (const std::string& name : names) {
    const FoundMapping found = find_mapping(action.root, name);
    const auto mapping = mapping_in(found);
    const bool shared = mapping && !mapping->bridge.empty();
    if (shared ? is_served(action.root, *mapping) : supervisor->runs(name)) continue;
    std::string wrong = story_of_leftover(action.root, found, *supervisor);
    if (wrong.empty())
      wrong = mapping ? serve(action.root, *mapping, *supervisor) : mapping.error();
    const auto line = wrong.empty() ? device_line(action.root, name) : tl::unexpected(wrong);
    if (line)
      told += *line;
    else
      troubles.push_back(line.error());
  }
  if (!troubles.empty()) return refused(joined(troubles, "; "));
  return {0, told, ""};
}

}  // namespace rnbd
