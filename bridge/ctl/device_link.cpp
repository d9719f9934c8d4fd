// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/device_link.hpp"

#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>

#include "bridge/ctl/outcome.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

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

}  // namespace

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

}  // namespace rnbd
