// SPDX-License-Identifier: BSD-3-Clause
// A mapping as this machine has it: its file, its device of the kernel, its bridge; and how it is
// taken away.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/supervisor.hpp"

namespace rnbd {

/// A mapping that is there, or was: some of this may lack.
struct FoundMapping {
  std::string name;
  std::optional<KernelDevice> device;
  std::vector<std::string> files;  ///< in /run, in /etc
};

/// By the name of the mapping, or nbdN, or /dev/nbdN.
FoundMapping find_mapping(const std::string& root, const std::string& word);

/// The kernel's device of the mapping of this name.
std::optional<KernelDevice> device_called(const std::string& root, const std::string& name);

bool is_there(const FoundMapping& found, const Supervisor& supervisor);

/// A sentence for whoever has named none.
std::string nothing_named(const std::string& word);

/// The wish in its file.
///
/// Errors: a sentence when it has none, or one that cannot be read.
tl::expected<Mapping, std::string> mapping_in(const FoundMapping& found);

/// "" or who uses its device.
std::string complaint_about_openers(const std::string& root, const FoundMapping& found);

/// Ends its bridge and takes its device from the kernel. Without `force` not while somebody uses
/// it. "" or the obstacle.
std::string take_away(const std::string& root, const FoundMapping& found, Supervisor& supervisor,
                      bool force);

}  // namespace rnbd
