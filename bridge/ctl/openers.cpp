// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/openers.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

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

/// Of a folder that is gone there are none; processes end meanwhile.
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

  /// Those of other mount namespaces, each named by a process of it. Services have such, and
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

bool is_only_udev(const std::vector<std::string>& openers) {
  const auto is_udev = [](const std::string& opener) {
    return opener.starts_with("open in ") &&
           (opener.ends_with("((udev-worker))") || opener.ends_with("(systemd-udevd)"));
  };
  return !openers.empty() && std::ranges::all_of(openers, is_udev);
}

}  // namespace rnbd
