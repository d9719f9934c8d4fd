// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/kernel_devices.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "bridge/ctl/output.hpp"
#include "bridge/kernel/netlink.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using Lines = std::vector<std::string>;

// ---- Identifiers --------------------------------------------------------------------------------

constexpr std::string_view kPrefix = "rnbd:";
constexpr const char* kBlock = "/sys/block";

/// nbd2 before nbd10.
bool by_number(const KernelDevice& a, const KernelDevice& b) {
  return std::pair{a.device.size(), a.device} < std::pair{b.device.size(), b.device};
}

// ---- Links --------------------------------------------------------------------------------------

constexpr std::chrono::milliseconds kLookForLink{20};
constexpr std::string_view kByName = "/dev/rnbd/by-name/", kByUuid = "/dev/rnbd/by-uuid/";

/// One of an earlier mapping may lead to another device still.
bool leads_to(const std::string& link, const std::string& device) {
  std::error_code ignored;
  return fs::read_symlink(link, ignored).filename() == device;
}

bool udev_runs(const std::string& root) {
  std::error_code ignored;
  return fs::exists(root + "/run/udev/control", ignored);
}

// ---- Users --------------------------------------------------------------------------------------

/// Opening looks for partitions, and waits for that for ever if the bridge has died or has no
/// server. So a process of its own does it, which may be left behind.
constexpr std::chrono::seconds kTimeToOpen{5};
constexpr std::chrono::milliseconds kLookAtChild{5};

bool is_taken(const char* path) {
  return ::open(path, O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK) < 0 && errno == EBUSY;
}

/// A file that is gone has no line.
std::string first_line(const fs::path& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  return line;
}

/// A folder that is gone has none: processes end meanwhile.
Lines entries_of(const fs::path& folder) {
  Lines names;
  std::error_code error;
  fs::directory_iterator entry{folder, error};
  for (; !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

/// The device, and its partitions: nbd0, nbd0p1.
class Family {
 public:
  Family(const std::string& root, const std::string& device)
      : root_{root}, folder_{root + "/sys/block/" + device}, members_{device} {
    for (const std::string& name : entries_of(folder_)) {
      if (name.starts_with(device + 'p')) members_.push_back(name);
    }
  }

  Lines mounts() const { return mounts_of("self"); }

  /// Mounts of other mount namespaces, each named by a process of it. Services have such, and
  /// containers.
  Lines mounts_elsewhere() const {
    Lines found;
    std::set<fs::path> seen;
    for (const std::string& process : processes_of_machine()) {
      std::error_code ignored;
      const fs::path space = fs::read_symlink(process_folder(process) / "ns/mnt", ignored);
      if (space.empty() || !seen.insert(space).second) continue;
      for (const std::string& mount : mounts_of(process)) {
        found.push_back(mount + " for " + described(process));
      }
    }
    return found;
  }

  Lines swaps() const {
    Lines found;
    std::ifstream swaps{root_ + "/proc/swaps"};
    for (std::string line; std::getline(swaps, line);) {
      if (has(line.substr(0, std::min(line.find_first_of(" \t"), line.size())))) {
        found.emplace_back("swap");
      }
    }
    return found;
  }

  Lines holders() const {
    Lines found;
    for (const std::string& member : members_) {
      for (const std::string& holder : entries_of(place_of(member) / "holders")) {
        found.push_back("held by " + holder);
      }
    }
    return found;
  }

  Lines processes() const {
    Lines found;
    for (const std::string& process : processes_of_machine()) {
      if (opens(process_folder(process) / "fd")) found.push_back("open in " + described(process));
    }
    return found;
  }

  /// "in use": an exclusive user exists that cannot be named. "": none.
  std::string probe() const {
    const std::string path = root_ + "/dev/" + members_.front();
    const pid_t child = ::fork();
    if (child < 0) return std::string{"not known: "} + std::strerror(errno);
    if (child == 0) ::_exit(is_taken(path.c_str()) ? 1 : 0);
    const auto limit = std::chrono::steady_clock::now() + kTimeToOpen;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= limit)
        return "perhaps, which cannot be seen while its requests hang";
      std::this_thread::sleep_for(kLookAtChild);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "in use";
  }

 private:
  fs::path place_of(const std::string& member) const {
    return member == members_.front() ? folder_ : folder_ / member;
  }
  fs::path process_folder(const std::string& process) const {
    return fs::path{root_ + "/proc"} / process;
  }
  Lines processes_of_machine() const {
    Lines names = entries_of(root_ + "/proc");
    std::erase_if(names, [](const std::string& name) {
      return name.find_first_not_of("0123456789") != std::string::npos;
    });
    return names;
  }
  std::string described(const std::string& process) const {
    return process + " (" + first_line(process_folder(process) / "comm") + ")";
  }
  Lines mounts_of(const std::string& process) const {
    std::set<std::string> numbers;
    for (const std::string& member : members_) numbers.insert(first_line(place_of(member) / "dev"));
    numbers.erase("");
    Lines found;
    std::ifstream mounts{process_folder(process) / "mountinfo"};
    for (std::string line; std::getline(mounts, line);) {
      std::istringstream words{line};
      std::string id, parent, number, top, point;
      words >> id >> parent >> number >> top >> point;
      if (numbers.contains(number)) found.push_back("mounted at " + point);
    }
    return found;
  }
  bool has(const std::string& path) const {
    return std::ranges::any_of(members_,
                               [&](const std::string& member) { return path == "/dev/" + member; });
  }
  bool opens(const fs::path& descriptors) const {
    return std::ranges::any_of(entries_of(descriptors), [&](const std::string& descriptor) {
      std::error_code ignored;
      return has(fs::read_symlink(descriptors / descriptor, ignored));
    });
  }

  std::string root_;
  fs::path folder_;
  Lines members_;
};

}  // namespace

std::optional<KernelDevice> parse_backend_identifier(std::string_view device,
                                                     std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  // A substitute for a UUID may have a colon, the name of a mapping has none.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) return std::nullopt;
  return KernelDevice{std::string{device}, std::string{text.substr(0, colon)},
                      std::string{text.substr(colon + 1)}};
}

std::optional<KernelDevice> find_kernel_device(const std::string& root, const std::string& device) {
  std::ifstream file{root + kBlock + '/' + device + "/backend"};
  std::string line;
  std::getline(file, line);
  auto found = parse_backend_identifier(device, line);
  if (found) found->read_only = is_read_only(root, device);
  return found;
}

std::vector<KernelDevice> find_kernel_devices(const std::string& root) {
  std::vector<KernelDevice> devices;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{root + kBlock, ignored}) {
    const std::string device = entry.path().filename();
    if (!device.starts_with("nbd")) continue;
    if (auto found = find_kernel_device(root, device)) devices.push_back(*std::move(found));
  }
  std::ranges::sort(devices, by_number);
  return devices;
}

bool is_read_only(const std::string& root, const std::string& device) {
  int read_only = 0;
  std::ifstream{root + kBlock + '/' + device + "/ro"} >> read_only;
  return read_only != 0;
}

std::string without_link(const std::string& root, const std::string& word) {
  if (!word.starts_with("/dev/")) return word;
  std::error_code ignored;
  const std::string target = fs::read_symlink(root + word, ignored).filename();
  if (!target.empty() && find_kernel_device(root, target)) return target;
  for (const std::string_view folder : {kByName, kByUuid}) {
    if (word.starts_with(folder)) return word.substr(folder.size());
  }
  return word;
}

std::string link_of_mapping(const std::string& name) { return std::string{kByName} + name; }

std::string link_of_uuid(const std::string& uuid) { return std::string{kByUuid} + uuid; }

std::string await_link(const std::string& root, const KernelDevice& device, double patience) {
  const std::string link = link_of_mapping(device.name);
  if (patience <= 0 || !udev_runs(root)) return "";
  const auto limit = steady_clock::now() + std::chrono::duration<double>(patience);
  while (!leads_to(root + link, device.device)) {
    if (steady_clock::now() >= limit) {
      return "udev has not made " + link + " within " + in_seconds(patience) + "; use /dev/" +
             device.device + " meanwhile, and `udevadm info /dev/" + device.device +
             "` shows what udev knows of it";
    }
    std::this_thread::sleep_for(kLookForLink);
  }
  return "";
}

std::string disconnect_kernel_device(const std::string& device) {
  constexpr std::string_view kDriver = "nbd";
  unsigned index = 0;
  const char* const end = device.data() + device.size();
  const bool named = device.starts_with(kDriver);
  const auto [rest, wrong] =
      std::from_chars(device.data() + (named ? kDriver.size() : 0), end, index);
  if (!named || wrong != std::errc{} || rest != end) return "'" + device + "' is no device nbdN";
  auto netlink = kernel::Netlink::open();
  if (!netlink) return netlink.error().text;
  kernel::Message message;
  message.command = kernel::Command::disconnect;
  message.index = index;
  const auto sent = netlink->send(message);
  return sent ? "" : sent.error().text;
}

std::vector<std::string> openers_of(const std::string& root, const std::string& device) {
  const Family family{root, device};
  Lines all;
  for (const Lines& some :
       {family.mounts(), family.swaps(), family.holders(), family.processes()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  if (all.empty()) all = family.mounts_elsewhere();
  if (std::string more = all.empty() ? family.probe() : ""; !more.empty()) all.push_back(more);
  return all;
}

std::string users_of(const std::string& root, const std::string& device) {
  return joined(openers_of(root, device));
}

bool is_only_udev(const std::vector<std::string>& openers) {
  const auto is_udev = [](const std::string& opener) {
    return opener.starts_with("open in ") &&
           (opener.ends_with("((udev-worker))") || opener.ends_with("(systemd-udevd)"));
  };
  return !openers.empty() && std::ranges::all_of(openers, is_udev);
}

}  // namespace rnbd
