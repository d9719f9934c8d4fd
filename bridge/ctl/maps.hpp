// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl map, unmap, remap and resize.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

CtlOutcome map_device(const CtlAction& action);
CtlOutcome unmap_device(const CtlAction& action);
/// The disks of these names, all away before the first comes again. Without `force` nothing
/// changes while somebody uses one of them. The output names their devices.
CtlOutcome remap_devices(const CtlAction& action, const std::vector<std::string>& names);
CtlOutcome resize_device(const CtlAction& action);
/// Starts the bridge of a mapping that has none, or of all such mappings ("all"). The output names
/// their devices.
CtlOutcome recover_devices(const CtlAction& action);
/// The size of a mapping's device at its server, by its bridge's answer to `status`. Pure.
///
/// Errors: a sentence when there is no device, or no path over which the server could tell.
tl::expected<std::uint64_t, std::string> size_told_by(const CtlReport& report,
                                                      const std::string& mapping);
/// The sentence about a word that names no mapping.
std::string nothing_named(const std::string& word);
/// The name of the mapping that is called NAME, nbdN or /dev/nbdN; "": there is none.
std::string mapping_called(const CtlAction& action, const std::string& name);
/// Completes the rows of disks whose bridge cannot tell the name of the export, by their files.
void add_exports_of_mappings(const std::string& root, CtlInventory& inventory);
/// The mappings whose disk is the export NAME, which may be its UUID, too: by their files, and by
/// what their bridges have open.
std::set<std::string> mappings_of_export(const std::string& root, const std::string& name,
                                         const CtlInventory& inventory);

}  // namespace rnbd
