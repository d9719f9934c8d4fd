// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/boot_mounts.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "bridge/ctl/device_link.hpp"
#include "bridge/ctl/found_mapping.hpp"
#include "bridge/ctl/fstab.hpp"
#include "bridge/ctl/mapping.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

/// The name in a line's link, without a partition. "": the link has a UUID.
std::string name_in(const std::string& source) {
  const std::string folder = link_of_mapping("");
  if (!source.starts_with(folder)) return "";
  const std::string name = source.substr(folder.size());
  const std::size_t part = name.rfind("-part");
  const bool is_part = part != std::string::npos && part + 5 < name.size() &&
                       name.find_first_not_of("0123456789", part + 5) == std::string::npos;
  return is_part ? name.substr(0, part) : name;
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

std::vector<MountWithoutDisk> mounts_without_disk(const std::string& root,
                                                  const std::vector<KernelDevice>& devices) {
  return FstabReader{root, devices}.judge();
}

}  // namespace rnbd
