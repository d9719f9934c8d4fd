// SPDX-License-Identifier: BSD-3-Clause
// Interfaces for kinds of disks beyond a device of one server. Each kind has a folder of its own,
// and a line in annexes.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/disk.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"
#include "bridge/control/commands.hpp"
#include "bridge/metrics/exposition.hpp"

namespace rnbd {

/// A disk for which there is no session of its client's own.
///
/// Threads: any; leave() when no call is under way.
class DiskSource {
 public:
  virtual ~DiskSource() = default;
  /// Opens the disk for one more user. The text of a failure does not name the servers.
  virtual tl::expected<std::unique_ptr<Disk>, Failure> open(bool readonly,
                                                            const Interrupt& interrupt) = 0;
  /// Checks that the disk can be used, and keeps nothing open: no thread, no connection.
  virtual tl::expected<void, Failure> probe() = 0;
  /// All its sessions as one.
  virtual SessionStatus status() = 0;
  virtual void add_metrics(Exposition& page) = 0;
  /// Why an operator's changes of paths are not for it.
  virtual std::string why_no_paths() const = 0;
  /// Ends its sessions and threads.
  virtual void leave() = 0;
};

/// Another way to the blocks of an open device.
///
/// Threads: any.
class DeviceWrapper {
 public:
  virtual ~DeviceWrapper() = default;
  /// The device itself where that way does not lead to it; the log has the reason.
  virtual std::unique_ptr<Disk> wrap(Session& session, std::unique_ptr<RemoteDevice> device,
                                     const Interrupt& interrupt) = 0;
};

/// The contribution of an annex. A null function: nothing of that kind.
struct ClientAnnex {
  std::span<const ClientOption> options;
  /// Judges all options together, and completes the configuration. "" or the mistake.
  std::string (*complete)(ClientDraft& draft) = nullptr;
  /// Null: the disk is not of this kind. The configuration must outlive the result.
  std::unique_ptr<DiskSource> (*source)(const ClientConfig& config, const rtrs::Log& log) = nullptr;
  std::unique_ptr<DeviceWrapper> (*wrapper)(const ClientConfig& config,
                                            const rtrs::Log& log) = nullptr;
  /// Of a control socket. `source` is that of the open disk, of whatever kind; null: none.
  std::vector<ControlCommand> (*commands)(const ClientConfig& config, DiskSource* source) = nullptr;
};

std::span<const ClientAnnex* const> client_annexes();

}  // namespace rnbd
