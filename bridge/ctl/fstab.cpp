// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/fstab.hpp"

#include <mntent.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>

#include "bridge/ctl/mapping.hpp"

namespace rnbd {
namespace {

/// The link of a disk, of which this may be a partition's.
std::string without_part(const std::string& link) {
  const std::size_t part = link.rfind("-part");
  const bool is_part = part != std::string::npos && part + 5 < link.size() &&
                       link.find_first_not_of("0123456789", part + 5) == std::string::npos;
  return is_part ? link.substr(0, part) : link;
}

bool names(const std::string& source, const std::string& link) {
  return source == link || without_part(source) == link;
}

/// Blanks are \040 in a line.
std::string encoded(std::string word) {
  for (std::size_t at = 0; (at = word.find(' ', at)) != std::string::npos;) {
    word.replace(at, 1, "\\040");
  }
  return word;
}

std::string text_of(const mntent& entry) {
  return std::string{entry.mnt_fsname} + " " + encoded(entry.mnt_dir) + " " + entry.mnt_type + " " +
         entry.mnt_opts + " " + std::to_string(entry.mnt_freq) + " " +
         std::to_string(entry.mnt_passno);
}

/// Blanks and their like are written as \040 there.
std::string decoded(const std::string& word) {
  std::string text;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool escape =
        word[i] == '\\' && i + 3 < word.size() && word.find_first_not_of("01234567", i + 1) > i + 3;
    text += escape ? static_cast<char>(std::stoi(word.substr(i + 1, 3), nullptr, 8)) : word[i];
    if (escape) i += 3;
  }
  return text;
}

std::set<std::string> mount_points(const std::string& root) {
  std::set<std::string> points;
  std::ifstream mounts{root + "/proc/self/mountinfo"};
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words{line};
    std::string id, parent, number, top, point;
    if (words >> id >> parent >> number >> top >> point) points.insert(decoded(point));
  }
  return points;
}

std::string without_slash(std::string point) {
  while (point.size() > 1 && point.back() == '/') point.pop_back();
  return point;
}

namespace fs = std::filesystem;
using Names = std::set<std::string>;

/// The lines that name their disk by a link of udev. Source: fstab(5), getmntent(3).
std::vector<FstabLine> fstab_lines(const std::string& root) {
  std::vector<FstabLine> lines;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{
      ::setmntent((root + "/etc/fstab").c_str(), "re"), ::endmntent};
  if (file == nullptr) return lines;
  mntent entry{};
  std::array<char, 4096> buffer{};
  while (::getmntent_r(file.get(), &entry, buffer.data(), buffer.size()) != nullptr) {
    const std::string_view source = entry.mnt_fsname;
    if (!source.starts_with(link_of_mapping("")) && !source.starts_with(link_of_uuid(""))) continue;
    const bool automatic = ::hasmntopt(&entry, "noauto") == nullptr;
    lines.push_back({entry.mnt_fsname, text_of(entry), without_slash(entry.mnt_dir), automatic,
                     automatic && ::hasmntopt(&entry, "nofail") == nullptr});
  }
  return lines;
}

/// True: the line names the device, or a partition of it. An empty UUID or name is none.
bool is_line_of(const FstabLine& line, const KernelDevice& device) {
  return (!device.name.empty() && names(line.source, link_of_mapping(device.name))) ||
         (!device.uuid.empty() && names(line.source, link_of_uuid(device.uuid)));
}

/// The name in a line's link, without a partition. "": the link has a UUID.
std::string name_in(const std::string& source) {
  const std::string folder = link_of_mapping("");
  if (!source.starts_with(folder)) return "";
  return without_part(source.substr(folder.size()));
}

class FstabReader {
 public:
  FstabReader(const std::string& root, const std::vector<KernelDevice>& devices)
      : root_{root},
        devices_{devices},
        lasting_{names_of_mapping_files(root, true)},
        of_this_boot_{names_of_mapping_files(root, false)} {}

  std::vector<MountWithoutDisk> judge() const {
    std::vector<MountWithoutDisk> found;
    for (const FstabLine& line : fstab_lines(root_)) {
      if (!line.automatic || is_of_any(line, lasting_)) continue;
      MountWithoutDisk mount{line.source, line.point, line.awaited};
      if (const std::string name = mapping_of_this_boot(line); !name.empty()) {
        mount.mapping = name;
        const auto mapping = mapping_in(find_mapping(root_, name));
        if (!mapping) continue;  // whoever changed the file knows
        mount.keep = command_for(*mapping);
      } else if (has_disk(line) || !is_known(line)) {
        continue;  // others start its bridge
      } else {
        mount.mapping = name_in(line.source);
      }
      found.push_back(std::move(mount));
    }
    return found;
  }

 private:
  /// The disk of the mapping, as far as the kernel has it.
  KernelDevice disk_of(const std::string& name) const {
    const auto found = std::ranges::find(devices_, name, &KernelDevice::name);
    return found != devices_.end() ? *found : KernelDevice{"", "", name};
  }
  bool is_of_any(const FstabLine& line, const Names& names) const {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return is_line_of(line, disk_of(name)); });
  }
  std::string mapping_of_this_boot(const FstabLine& line) const {
    const auto found = std::ranges::find_if(
        of_this_boot_, [&](const std::string& name) { return is_line_of(line, disk_of(name)); });
    return found != of_this_boot_.end() ? *found : "";
  }
  bool has_disk(const FstabLine& line) const {
    return std::ranges::any_of(
        devices_, [&](const KernelDevice& device) { return is_line_of(line, device); });
  }
  /// A UUID may be that of a mapping whose disk is not there.
  bool is_known(const FstabLine& line) const {
    if (!name_in(line.source).empty()) return true;
    const auto has_uuid = [&](const std::string& name) { return !disk_of(name).uuid.empty(); };
    return std::ranges::all_of(lasting_, has_uuid) && std::ranges::all_of(of_this_boot_, has_uuid);
  }

  const std::string& root_;
  const std::vector<KernelDevice>& devices_;
  Names lasting_, of_this_boot_;
};

}  // namespace

std::vector<FstabLine> fstab_lines_of(const std::string& root, const KernelDevice& device) {
  std::vector<FstabLine> lines = fstab_lines(root);
  std::erase_if(lines, [&](const FstabLine& line) { return !is_line_of(line, device); });
  return lines;
}

std::vector<MissingMount> missing_mounts(const std::string& root,
                                         const std::vector<KernelDevice>& devices) {
  const std::set<std::string> mounted = mount_points(root);
  std::vector<MissingMount> missing;
  for (const KernelDevice& device : devices) {
    for (const FstabLine& line : fstab_lines_of(root, device)) {
      if (!line.automatic || !line.point.starts_with('/') || mounted.contains(line.point)) continue;
      missing.push_back({device.device, line.point});
    }
  }
  return missing;
}

std::vector<MountWithoutDisk> mounts_without_disk(const std::string& root,
                                                  const std::vector<KernelDevice>& devices) {
  return FstabReader{root, devices}.judge();
}

}  // namespace rnbd
