// SPDX-License-Identifier: BSD-3-Clause
// A bridge that several mappings share: its disks come and go while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tl/expected.hpp>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/supervisor.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// The disks of a bridge by its answer to `status`: `disk` (the mapping), `device` (the export),
/// `state`, `trouble`. An older bridge tells of none. Pure.
const CtlJson& disks_in(const CtlJson& status);
/// The disk of this name; null: it has none. Pure.
const CtlJson* disk_called(const CtlJson& status, const std::string& name);

/// The bridge that serves a mapping without a file, by asking those that run. "": none does.
std::string bridge_serving(const std::string& root, const std::string& name);

/// True if the bridge of a mapping says so.
bool is_served(const std::string& root, const Mapping& mapping);

/// True if a bridge serves another export under the name of the mapping.
bool has_other_disk(const std::string& root, const Mapping& mapping);

/// Makes a bridge serve a mapping that has a file, and returns when it does. "" or the obstacle;
/// then it goes on trying, unless has_other_disk(). With `again` it tries at once what it has tried
/// before.
std::string add_disk(const std::string& root, const Mapping& mapping, bool again);

/// Makes a bridge take a disk away.
enum class DiskRemoval : std::uint8_t {
  done,       ///< the bridge has it no more
  no_bridge,  ///< nobody listens
  hangs,      ///< no answer, or the disk has not gone in time
};
DiskRemoval remove_disk(const std::string& root, const std::string& key, const std::string& name,
                        std::chrono::seconds patience);

/// Keeps other commands from ending a bridge for which a file is written, or from writing one for a
/// bridge that ends. It may wait while another command starts or ends the bridge: whatever was
/// looked at before may have changed since.
///
/// Errors: a sentence of the system.
tl::expected<rtrs::OwnedFd, std::string> lock_bridge(const std::string& root,
                                                     const std::string& key);

/// Keeps other commands from taking a name between the look at it and the file that takes it. Never
/// waits long. Taken after lock_bridge().
///
/// Errors: a sentence of the system.
tl::expected<rtrs::OwnedFd, std::string> lock_names(const std::string& root);

/// Ends the bridge if no file names it any more. If a lasting one has gone, and no other one is
/// there, the next boot does without it. With lock_bridge(). "" or the obstacle.
struct BridgeEnd {
  bool lasting = false;  ///< the file that has gone
  bool force = false;
};
std::string end_if_unused(const std::string& root, const std::string& key, Supervisor& supervisor,
                          BridgeEnd how);

/// Removes the log and the lock of a bridge that no file names any more. With lock_bridge().
void forget_if_ended(const std::string& root, const std::string& key, Supervisor& supervisor);

/// True if another mapping shares the bridge and has the same export: each of them needs a session.
/// With lock_bridge().
bool has_twin(const std::string& root, const Mapping& mapping);

}  // namespace rnbd
