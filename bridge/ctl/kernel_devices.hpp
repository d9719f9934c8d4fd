// SPDX-License-Identifier: BSD-3-Clause
// The kernel's nbd devices that rnbd-bridge attached.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rnbd {

/// The identifier with which the device was attached: `rnbd:UUID:NAME`.
struct KernelDevice {
  std::string device;      ///< "nbd0"
  std::string uuid;        ///< of the export, or its substitute
  std::string name;        ///< of the mapping
  bool read_only = false;  ///< the kernel refuses writes to it
  friend bool operator==(const KernelDevice&, const KernelDevice&) = default;
};

/// Reads the identifier of a device; none: another program has attached it. Whether the device is
/// read-only is not in there.
std::optional<KernelDevice> parse_backend_identifier(std::string_view device,
                                                     std::string_view text);

/// One device, or all of them in the order of their numbers. Source: /sys/block/nbdN/backend, below
/// `root`.
std::optional<KernelDevice> find_kernel_device(const std::string& root, const std::string& device);
std::vector<KernelDevice> find_kernel_devices(const std::string& root);

/// True if the kernel refuses writes to the device. Source: /sys/block/nbdN/ro, below `root`.
bool is_read_only(const std::string& root, const std::string& device);

}  // namespace rnbd
