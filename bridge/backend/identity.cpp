// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/identity.hpp"

#include <fcntl.h>

#include <cstring>
#include <fstream>

namespace rnbd {
namespace {

/// The first line without blanks around it; empty if the system does not tell.
std::string line_of(const std::string& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  const char* const kBlanks = " \t\r\n";
  const auto first = line.find_first_not_of(kBlanks);
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(kBlanks) + 1 - first);
}

/// A name that was given to the device itself or to the volume on it.
/// Source: Linux, Documentation/ABI/stable/sysfs-block and testing/sysfs-block-dm.
std::string name_of_device(const std::string& folder) {
  for (const char* const attribute :
       {"dm/uuid", "wwid", "device/wwid", "serial", "device/serial"}) {
    const std::string name = line_of(folder + "/" + attribute);
    if (!name.empty()) return std::string{attribute} + " " + name;
  }
  return "";
}

std::string identity_of_device(const std::string& folder, const std::string& number,
                               const std::string& root);

/// A loop device is a part of its file, as long as that has a name.
std::string identity_of_loop(const std::string& folder, const std::string& root) {
  const std::string path = line_of(folder + "/loop/backing_file");
  struct statx stat {};
  if (path.empty() ||
      statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS | STATX_BTIME, &stat) != 0) {
    return "";
  }
  return "from " + line_of(folder + "/loop/offset") + ", limit " +
         line_of(folder + "/loop/sizelimit") + ", of " + identity_of(stat, root);
}

/// A partition is a part of its disk.
std::string identity_of_partition(const std::string& folder, const std::string& root) {
  const std::string number = line_of(folder + "/partition");
  if (number.empty()) return "";
  const std::string disk = folder + "/..";
  return "partition " + number + ", from sector " + line_of(folder + "/start") + ", of " +
         identity_of_device(disk, line_of(disk + "/dev"), root);
}

std::string identity_of_device(const std::string& folder, const std::string& number,
                               const std::string& root) {
  std::string identity = identity_of_partition(folder, root);
  if (identity.empty()) identity = name_of_device(folder);
  if (identity.empty()) identity = identity_of_loop(folder, root);
  if (!identity.empty()) return identity;
  // Device numbers are used again, but their sequence number is not until the next boot.
  return "device " + number + ", sequence " + line_of(folder + "/diskseq") + ", boot " +
         line_of(root + "/proc/sys/kernel/random/boot_id");
}

std::string identity_of_file(const struct statx& stat) {
  const std::string inode = "inode " + std::to_string(stat.stx_ino);
  // A file that was deleted and made again may get the same inode number, but not the same birth.
  // The number of its file system is another one after a reboot (btrfs, NFS, device mapper).
  if ((stat.stx_mask & STATX_BTIME) != 0 && stat.stx_btime.tv_sec != 0) {
    return inode + ", born " + std::to_string(stat.stx_btime.tv_sec) + " s " +
           std::to_string(stat.stx_btime.tv_nsec) + " ns";
  }
  return inode + ", device " + std::to_string(stat.stx_dev_major) + ":" +
         std::to_string(stat.stx_dev_minor);
}

}  // namespace

std::string identity_of(const struct statx& stat, const std::string& root) {
  if (!S_ISBLK(stat.stx_mode)) return identity_of_file(stat);
  const std::string number =
      std::to_string(stat.stx_rdev_major) + ":" + std::to_string(stat.stx_rdev_minor);
  return identity_of_device(root + "/sys/dev/block/" + number, number, root);
}

std::array<std::uint8_t, 16> uuid_of(std::string_view identity) {
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t hash = 0xCBF29CE484222325;
  for (std::size_t half = 0; half < 2; ++half) {
    for (const char letter : identity) {
      hash = (hash ^ static_cast<std::uint8_t>(letter)) * 0x100000001B3;
    }
    std::memcpy(uuid.data() + 8 * half, &hash, sizeof hash);
  }
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x80);  // version 8, free form
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

}  // namespace rnbd
