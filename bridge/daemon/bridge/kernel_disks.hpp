// SPDX-License-Identifier: BSD-3-Clause
// The disks of the kernel that a bridge serves: the one of its options, or those of files.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/control/commands.hpp"
#include "bridge/daemon/bridge/disk_files.hpp"
#include "bridge/daemon/bridge/options.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/kernel/disks.hpp"
#include "bridge/nbd/front.hpp"

namespace rnbd {

/// Descriptors of predecessors, by the names of their disks.
using StoredDisks = std::map<std::string, kernel::Kept>;

/// Takes the disks out of what the service manager has kept. It keeps them no longer: they must not
/// hide this process's death from the kernel.
StoredDisks take_stored_disks(std::vector<StoredDescriptor>& stored);

/// Threads: begin() and end() one at a time, the rest any.
class KernelDisks {
 public:
  /// `files`: null without --disks. The arguments must outlive it.
  KernelDisks(const BridgeOptions& options, const DiskFiles* files, Connections& connections,
              nbd::Front& front, StoredDisks stored);

  /// Begins to serve all disks. Returns when a single one is served, or when each of many has been
  /// tried.
  ///
  /// Errors: those of a single one.
  tl::expected<void, Failure> begin();
  /// Ends attempts to serve them.
  void stop();
  /// Leaves the disks to a successor if the service manager keeps them for that one, else takes
  /// them away. Requests under way may take until then.
  void end(std::chrono::steady_clock::time_point until);

  /// ", /dev/nbd0" or ", 31 of 32 disks"; "": there is none.
  std::string before_server() const;
  /// ": 31 of 32 disks (disk7 waits)" of several, for the service manager.
  std::string behind_server() const;
  /// `status` tells of the disks. With files there are `add-disk` and `remove-disk`, too. This must
  /// outlive them.
  std::vector<ControlCommand> with_disks(std::vector<ControlCommand> commands);

 private:
  tl::expected<Json, Failure> add(const std::string& name);
  tl::expected<Json, Failure> remove(const std::string& name);
  std::shared_ptr<kernel::KernelDisk> make_disk(const BridgeOptions& of_disk,
                                                const std::optional<kernel::Kept>& kept) const;
  std::optional<kernel::Kept> kept_of(const std::string& name);
  tl::expected<void, Failure> await_single();
  Json as_json() const;

  const BridgeOptions& options_;
  const DiskFiles* const files_;
  Connections& connections_;
  nbd::Front& front_;
  StoredDisks stored_;                  ///< until begin() has ended
  std::optional<kernel::Disks> disks_;  ///< none: it is for NBD clients only
};

}  // namespace rnbd
