// SPDX-License-Identifier: BSD-3-Clause
// A mapping on this machine: its file, its device of the kernel and its bridge. It can be removed.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/supervisor.hpp"

namespace rnbd {

/// A present or past mapping; parts of it may be missing.
struct FoundMapping {
  std::string name;
  std::optional<KernelDevice> device;
  std::vector<std::string> files;  ///< in /run, in /etc
};

/// Finds a mapping by its name, or by nbdN or /dev/nbdN.
FoundMapping find_mapping(const std::string& root, const std::string& word);

/// The kernel's device of the mapping of this name.
std::optional<KernelDevice> device_called(const std::string& root, const std::string& name);

bool is_there(const FoundMapping& found, const Supervisor& supervisor);

/// "", or why a disk of the kernel cannot be served again, and how it goes: it has no bridge, nor a
/// file that would start one.
std::string story_of_leftover(const std::string& root, const FoundMapping& found,
                              const Supervisor& supervisor);

/// A message if there is no mapping of this name.
std::string nothing_named(const std::string& word);

/// The request in its file.
///
/// Errors: a sentence if there is no file, or it cannot be read.
tl::expected<Mapping, std::string> mapping_in(const FoundMapping& found);

/// "" or the users of its device.
std::string complaint_about_openers(const std::string& root, const FoundMapping& found);

/// "" or the users that keep the name of a disk that was taken away by force.
std::string warning_about_users(const std::string& root, const FoundMapping& found);

/// Ends its bridge and disconnects its device. Without `force` it refuses while the device is in
/// use. Returns "" or the obstacle.
std::string take_away(const std::string& root, const FoundMapping& found, Supervisor& supervisor,
                      bool force);

}  // namespace rnbd
