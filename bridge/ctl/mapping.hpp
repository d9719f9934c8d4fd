// SPDX-License-Identifier: BSD-3-Clause
// Requests of `map` commands, the places of their files, and the mappings that are found here.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/words.hpp"
#include "bridge/kernel/mapping.hpp"

namespace rnbd {

/// The request of a `map` command, which shares a bridge if it can.
///
/// Errors: a sentence with the correct form.
tl::expected<Mapping, std::string> mapping_of(const CtlAction& action);

/// "rnbd-ctl map URI --name NAME --persist -- OPTION..."
std::string command_for(const Mapping& mapping);

/// The name of the process that serves a mapping: its own, or the key of a bridge that it shares.
std::string bridge_of(const Mapping& mapping);

/// The folder of files that last, or end with the next boot.
std::string folder_of_mappings(const std::string& root, bool persist);

/// The path of the file, which is lasting or ends with the next boot.
std::string path_of_mapping(const std::string& root, const std::string& name, bool persist);

/// The mappings that have such a file.
std::set<std::string> names_of_mapping_files(const std::string& root, bool persist);

/// The mappings that have one of either kind.
std::set<std::string> names_of_mappings(const std::string& root);

/// The files of a mapping: in /run, in /etc.
std::vector<std::string> files_of_mapping(const std::string& root, const std::string& name);

/// The mappings with such a file that share a bridge.
std::vector<Mapping> mappings_of_bridge(const std::string& root, const std::string& key,
                                        bool persist);

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

/// The request in its file.
///
/// Errors: a sentence if there is no file, or it cannot be read.
tl::expected<Mapping, std::string> mapping_in(const FoundMapping& found);

}  // namespace rnbd
