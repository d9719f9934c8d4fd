// SPDX-License-Identifier: BSD-3-Clause
// The records that outlive a server, in its state directory: the reservations of writers, one small
// file for each storage; a count of failed flushes; and the server's identity.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/server/evicted_clients.hpp"
#include "bridge/server/writer_reservations.hpp"
#include "rdma/owned_fd.hpp"
#include "rdma/server_id.hpp"

namespace rnbd {

/// Files are replaced as a whole, and are durable. Servers may share the directory if only one at a
/// time has a storage open for writing.
class ReservationFiles final : public WriterStore {
 public:
  /// Creates the directory if it does not exist.
  ///
  /// Errors: the mistake in it.
  static tl::expected<std::unique_ptr<ReservationFiles>, std::string> open(
      const std::string& directory);

  /// Other servers may have records of the same storage elsewhere.
  void share() { knows_all_ = false; }
  bool knows_all() const override { return knows_all_; }
  void lock() override;
  void unlock() override;
  tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) override;
  tl::expected<void, std::string> save(const wire::Uuid& storage,
                                       const WriterRecord& record) override;
  /// Syncs the directory once for all.
  std::vector<Saved> save_all(std::span<const Entry> entries) override;

 private:
  ReservationFiles(rtrs::OwnedFd directory, rtrs::OwnedFd lock, std::string path, bool existed)
      : directory_{std::move(directory)},
        lock_{std::move(lock)},
        path_{std::move(path)},
        knows_all_{existed} {}

  /// A message for people: the file's path and the trouble.
  tl::unexpected<std::string> failure(const std::string& name, int error) const;

  rtrs::OwnedFd directory_;
  rtrs::OwnedFd lock_;  ///< a file in it, because NFS locks no directory
  std::string path_;
  bool knows_all_;  ///< false in a new directory: the last one may be lost
};

/// Counts failures that may have lost answered writes without a restart of the machine. The count
/// is the size of a file; each failure adds a byte.
///
/// Threads: any.
class LossCount {
 public:
  /// Opens it in an existing directory.
  ///
  /// Errors: the trouble with the file.
  static tl::expected<LossCount, std::string> open(const std::string& directory);

  /// Call it before add().
  std::uint64_t count() const { return count_; }
  /// Durable when it returns. May block.
  ///
  /// Errors: the obstacle; then the file may contain it or not.
  tl::expected<void, std::string> add() const;

 private:
  LossCount(rtrs::OwnedFd file, std::string path, std::uint64_t count)
      : file_{std::move(file)}, path_{std::move(path)}, count_{count} {}

  rtrs::OwnedFd file_;
  std::string path_;
  std::uint64_t count_;
};

/// The server's identity toward its clients, in a file of its state directory. It belongs to one
/// process at a time: a second one with the same directory is a different server.
///
/// Threads: one.
class ServerIdentity {
 public:
  /// Opens it in an existing directory. Makes an identity if there is none.
  ///
  /// Errors: the trouble with the file; EWOULDBLOCK in words: another process has this identity.
  static tl::expected<ServerIdentity, std::string> open(const std::string& directory);

  rtrs::ServerId id() const { return id_; }
  /// Takes a new one, for the file is from another server. Durable when it returns.
  ///
  /// Errors: the obstacle.
  tl::expected<void, std::string> renew();

 private:
  ServerIdentity(rtrs::OwnedFd file, rtrs::ServerId id) : file_{std::move(file)}, id_{id} {}

  rtrs::OwnedFd file_;  ///< locked
  rtrs::ServerId id_;
};

/// Keeps the list of evicted clients in an existing directory, with what an earlier run has put
/// there.
///
/// Errors: the trouble with the file.
tl::expected<void, std::string> keep_evicted(EvictedClients& clients, const std::string& directory);

/// The default directory of a server's lasting records: $STATE_DIRECTORY, which systemd sets, or
/// /var/lib/rnbd.
std::string default_state_directory();

/// "" or the reason why this state directory cannot be used: it lies below the search path, where
/// clients could open the server's own records.
std::string complaint_about_state_directory(const std::string& directory, std::string search_path);

}  // namespace rnbd
