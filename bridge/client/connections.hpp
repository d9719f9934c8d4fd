// SPDX-License-Identifier: BSD-3-Clause
// The open devices of all NBD clients, which share one session.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"

namespace rnbd {

class DeviceWrapper;
class DiskSource;

/// A user's patience with storage that the server does not have yet.
enum class Absent : std::uint8_t {
  awaited,          ///< it is asked for again until connect-timeout has passed
  refused,          ///< the server's answer counts
  refused_at_once,  ///< likewise, and no other client that writes is awaited
};

/// Owns every open device, because nbdkit does not close them when it ends.
///
/// Errors:  failures name the server and the remedy.
/// Threads: any.
class Connections {
 public:
  Connections(const ClientConfig& config, rtrs::Log log);
  ~Connections();

  /// Opens a device for one more client; `name` comes from the client ("" = the default). `absent`
  /// becomes `refused` when storage has been awaited.
  tl::expected<Disk*, Failure> open(const std::string& name, bool readonly,
                                    const Interrupt& interrupt, Absent& absent);
  tl::expected<Disk*, Failure> open(const std::string& name, bool readonly,
                                    const Interrupt& interrupt) {
    Absent absent = Absent::awaited;
    return open(name, readonly, interrupt, absent);
  }
  /// The same for a disk with settings of its own.
  tl::expected<Disk*, Failure> open(const DiskConfig& wanted, bool readonly,
                                    const Interrupt& interrupt, Absent& absent);
  tl::expected<Disk*, Failure> open(const DiskConfig& wanted, bool readonly,
                                    const Interrupt& interrupt) {
    Absent absent = Absent::awaited;
    return open(wanted, readonly, interrupt, absent);
  }
  void close(Disk* disk);
  /// `disk0 at rnbd+tcp://storage:1234 (rw), UUID ...`, a description of the export for people.
  std::string describe(const Disk& disk) const;

  /// The server's exports. Errors: EOPNOTSUPP when it cannot list them.
  tl::expected<std::vector<wire::ExportName>, Failure> exports(const Interrupt& interrupt);
  /// Those whose storage is there, as far as the server tells. NBD clients that list exports ask
  /// for each, and qemu's shows none when there is one that it cannot have.
  tl::expected<std::vector<wire::ExportName>, Failure> present(const Interrupt& interrupt);
  /// As ServerDirectory::entries().
  tl::expected<std::vector<wire::DirectoryEntry>, Failure> directory(
      const Interrupt& interrupt, std::uint32_t kinds = wire::kDirectoryExports);
  /// The text of ServerDirectory::who().
  std::string who(const std::string& device, const Interrupt& interrupt);
  /// The device for a client that gives no name.
  tl::expected<std::string, Failure> default_device(const Interrupt& interrupt);

  /// Checks that the server and the configured device can be used, and written to if required. Logs
  /// the faults of single paths. Keeps nothing open.
  tl::expected<void, Failure> probe();
  /// The same for a program that forks no more: a disk without a session of its client's own stays
  /// attached.
  tl::expected<void, Failure> attach();

  /// Where an annex has the disk. Null: it is a device of one server.
  DiskSource* source() { return source_.get(); }

  /// The state of the shared session, or of the source's sessions.
  SessionStatus status();

  /// True if requests need not wait for a path, as far as that is known.
  bool has_path() { return source_ != nullptr || shared_.has_path(); }

  /// The shared session; unused with a source.
  SharedSession& session() { return shared_; }

  /// Ends the session and its threads. No call may be under way.
  void leave();

 private:
  tl::expected<std::unique_ptr<RemoteDevice>, Failure> open_in(Session& session,
                                                               const DiskConfig& wanted,
                                                               bool readonly,
                                                               const Interrupt& interrupt,
                                                               Absent& absent);
  tl::expected<void, Failure> wait_for_writer(RemoteDevice& device, Absent absent,
                                              const Interrupt& interrupt);
  Disk* keep(std::unique_ptr<Disk> disk);
  Failure named(Failure failure) const;
  Failure advised(Failure failure) const;
  Failure referred(Session& session, const std::string& device, Failure failure,
                   const Interrupt& interrupt) const;

  const ClientConfig& config_;
  const rtrs::Log log_;
  SharedSession shared_;
  std::unique_ptr<DiskSource> source_;
  std::unique_ptr<DeviceWrapper> wrapper_;
  std::mutex mutex_;
  std::unordered_map<Disk*, std::unique_ptr<Disk>> open_;  ///< guarded by mutex_
};

}  // namespace rnbd
