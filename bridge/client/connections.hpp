// SPDX-License-Identifier: BSD-3-Clause
// The open devices of all NBD clients, over the session that they share.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"

namespace rnbd {

namespace mirror {
class Mirror;
}
class PassiveBrick;

/// Owns every device that is open, because nbdkit does not close those that are open when it ends.
///
/// Errors:  failures name the server and the remedy.
/// Threads: any.
class Connections {
 public:
  Connections(const ClientConfig& config, rtrs::Log log);
  ~Connections();

  /// Opens a device for one more client; `name` is the one that the client gave ("" = the default).
  tl::expected<Disk*, Failure> open(const std::string& name, bool readonly,
                                    const Interrupt& interrupt);
  void close(Disk* disk);
  /// `disk0 at rnbd+tcp://storage:1234 (rw), UUID ...`, a description of the export for people.
  std::string describe(const Disk& disk) const;

  /// The server's exports. Errors: EOPNOTSUPP when it cannot tell.
  tl::expected<std::vector<wire::ExportName>, Failure> exports(const Interrupt& interrupt);
  /// As Session::directory().
  tl::expected<std::vector<wire::DirectoryEntry>, Failure> directory(
      const Interrupt& interrupt, std::uint32_t kinds = wire::kDirectoryExports);
  /// As Session::who().
  std::string who(const std::string& device, const Interrupt& interrupt);
  /// The device for a client that names none.
  tl::expected<std::string, Failure> default_device(const Interrupt& interrupt);

  /// Looks whether the server and the configured device can be used, for writing if that is
  /// demanded. Faults of single paths are logged. Keeps nothing.
  tl::expected<void, Failure> probe();

  /// None unless the configuration names a mirror, and somebody has opened it.
  std::shared_ptr<mirror::Mirror> mirror();
  /// Another one if a client elsewhere has taken the first over.
  std::shared_ptr<mirror::Mirror> usable_mirror();

  /// Of the session that all share, or of those with all members of a mirror.
  SessionStatus status();

  /// The session that all share; unused with a mirror.
  SharedSession& session() { return shared_; }

  /// Ends everything. No client may be left inside.
  void leave();

 private:
  tl::expected<std::unique_ptr<RemoteDevice>, Failure> open_in(Session& session,
                                                               const std::string& device,
                                                               bool readonly,
                                                               const Interrupt& interrupt);
  tl::expected<void, Failure> wait_for_writer(RemoteDevice& device, const Interrupt& interrupt);
  tl::expected<std::unique_ptr<Disk>, Failure> open_mirror(bool readonly,
                                                           const Interrupt& interrupt);
  std::unique_ptr<Disk> use_maps(Session& session, std::unique_ptr<RemoteDevice> device,
                                 const Interrupt& interrupt);
  Disk* keep(std::unique_ptr<Disk> disk);
  Failure named(Failure failure) const;
  Failure advised(Failure failure) const;
  Failure referred(Session& session, const std::string& device, Failure failure,
                   const Interrupt& interrupt) const;

  const ClientConfig& config_;
  const rtrs::Log log_;
  SharedSession shared_;
  std::mutex passive_mutex_;                          ///< held while a brick is opened
  std::vector<std::weak_ptr<PassiveBrick>> passive_;  ///< guarded by passive_mutex_
  std::mutex mutex_;
  std::shared_ptr<mirror::Mirror> mirror_;                 ///< guarded by mutex_
  std::unordered_map<Disk*, std::unique_ptr<Disk>> open_;  ///< guarded by mutex_
};

}  // namespace rnbd
