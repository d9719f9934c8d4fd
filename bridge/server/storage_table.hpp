// SPDX-License-Identifier: BSD-3-Clause
// The storages that a server has open, and the leases on them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tl/expected.hpp>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/catalogue_options.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/lease.hpp"
#include "bridge/server/reservation_book.hpp"
#include "bridge/server/search_path.hpp"

namespace rnbd {

/// Opens each file once for all exports and users of it. It outlives every lease.
///
/// Threads: any. The catalogue's lock guards its maps, and is never held for I/O. The lock of a
/// file
///          is taken before it.
class StorageTable {
 public:
  /// `catalogue` is the catalogue's lock.
  StorageTable(std::mutex& catalogue, const CatalogueOptions& options,
               ReservationBook& reservations)
      : mutex_{catalogue}, options_{options}, reservations_{reservations} {}
  StorageTable(const StorageTable&) = delete;
  StorageTable& operator=(const StorageTable&) = delete;

  BackendOptions backend_options(bool read_only) const;
  /// Opens storage that is not open yet. `found_as` is the name of a file of the search path; "":
  /// it is an export's, and permanent, see Storage. May block.
  tl::expected<std::shared_ptr<Storage>, Failure> open(const std::string& storage,
                                                       const BackendOptions& options,
                                                       const std::optional<FileIdentity>& identity,
                                                       const std::string& found_as = {});
  /// Null: it is not. A storage that is open for writing serves readers too.
  std::shared_ptr<Storage> already_open(const FileIdentity& identity, bool writable);
  /// Never blocks.
  ///
  /// Errors: EROFS, EPERM (too many writers).
  tl::expected<Lease, int> lease(std::shared_ptr<Storage> storage, const Geometry& geometry,
                                 const Access& access);
  /// Drops a reference to storage; the last one closes it. May block as any file access may.
  void close(std::shared_ptr<Storage> storage);
  /// The storages that clients have open. With the catalogue's lock held.
  const std::set<const Storage*>& in_use() const { return in_use_; }
  /// Held while the file is opened or closed, so that the next user does not find it still locked.
  /// One for each file: a file that hangs does not hold up the others.
  std::shared_ptr<std::mutex> lock_of(const FileIdentity& identity);

 private:
  friend class Lease;
  struct FileKey {
    FileIdentity identity;
    bool writable = false;
    friend auto operator<=>(const FileKey&, const FileKey&) = default;
  };

  /// Entries of closed files are left until there are `most`.
  template <class Key, class Object>
  struct Known {
    std::map<Key, std::weak_ptr<Object>> entries;
    std::size_t most = 0;
  };

  void give_back(const Lease& lease);

  std::mutex& mutex_;  ///< the catalogue's; guards the maps
  const CatalogueOptions& options_;
  ReservationBook& reservations_;
  Known<FileKey, Storage> files_;
  std::set<const Storage*> in_use_;
  Known<FileIdentity, std::mutex> file_locks_;
};

}  // namespace rnbd
