// SPDX-License-Identifier: BSD-3-Clause
// The kernel's nbd devices that rnbd-bridge attached: their identifiers, their links and users.
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

/// "/dev/rnbd/by-name/NAME"
std::string link_of_mapping(const std::string& name);
/// "/dev/rnbd/by-uuid/UUID"
std::string link_of_uuid(const std::string& uuid);

/// A device by its name in the kernel when the word is a link to it, below /dev. A link of udev
/// that is gone, as its disk may be, stands for the name or the UUID in it. Other words stay as
/// they are.
std::string without_link(const std::string& root, const std::string& word);

/// Returns when udev has made the link of the device. "", or a warning when it has not in time. It
/// does not wait where no udev runs.
///
/// Units: seconds. Source: contrib/udev/60-rnbd.rules.in.
std::string await_link(const std::string& root, const KernelDevice& device, double patience);

/// "mounted at /mnt", "swap", "held by dm-0", "open in 123 (dd)". Without any of these, "mounted at
/// /mnt for 123 (dd)" in other mount namespaces, or else "in use" if an exclusive user exists that
/// cannot be named. Empty: no user.
///
/// Source: proc(5), mount_namespaces(7); holders/ below /sys/block/nbdN and its partitions;
/// open(2), O_EXCL.
std::vector<std::string> openers_of(const std::string& root, const std::string& device);

/// The same as one text; "": no user.
std::string users_of(const std::string& root, const std::string& device);

/// udev looks at each new disk, and leaves it by itself. True: nobody else is among these openers.
bool is_only_udev(const std::vector<std::string>& openers);

/// Waiting requests end with EIO. `device` is nbdN. Needs CAP_SYS_ADMIN. Returns "" or a sentence
/// with the obstacle.
std::string disconnect_kernel_device(const std::string& device);

}  // namespace rnbd
