// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/kernel_devices.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace rnbd {
namespace {

constexpr std::string_view kPrefix = "rnbd:";
constexpr const char* kBlock = "/sys/block";

/// nbd2 before nbd10.
bool by_number(const KernelDevice& a, const KernelDevice& b) {
  return std::pair{a.device.size(), a.device} < std::pair{b.device.size(), b.device};
}

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
  for (const auto& entry : std::filesystem::directory_iterator{root + kBlock, ignored}) {
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

}  // namespace rnbd
