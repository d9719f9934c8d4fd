// SPDX-License-Identifier: BSD-3-Clause
// Storage that the catalogue keeps open, and the right to use it in one access mode.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/search_path.hpp"
#include "bridge/server/writer_reservations.hpp"

namespace rnbd {

/// An open backend, shared by all exports and mappings of the same storage.
///
/// Threads: immutable, apart from the members that the catalogue's lock guards.
class Storage {
 public:
  Storage(std::unique_ptr<Backend> backend, Geometry geometry, bool permanent)
      : backend_{std::move(backend)}, geometry_{geometry}, permanent_{permanent} {}

  Backend& backend() const { return *backend_; }
  const Geometry& geometry() const { return geometry_; }
  /// The counter that its writers share with other exports of the same storage.
  const WriterCount* writers() const { return writers_.get(); }
  /// See WriterCount.
  void changed() const { writers_->changed(); }
  /// True: open until the server ends or other storage replaces it. False: closed with its last
  /// user.
  bool permanent() const { return permanent_; }
  /// True: other storage has replaced it, and no client can open it any more.
  bool replaced() const { return replaced_; }
  const std::vector<std::shared_ptr<StorageAnnex>>& annexes() const { return annexes_; }
  /// As StorageAnnex::closed_to(), of any annex.
  std::string closed_to(std::uint64_t features, std::string_view name) const {
    std::string why;
    for (const auto& annex : annexes_)
      if (why.empty()) why = annex->closed_to(features, name);
    return why;
  }
  /// As StorageAnnex::told_size(), of all annexes.
  Geometry told(Geometry geometry) const {
    std::uint64_t size = geometry.size;
    for (const auto& annex : annexes_) size = annex->told_size(size);
    return size < geometry.size ? cut(geometry, size) : geometry;
  }

 private:
  friend class ExportCatalogue;
  friend class ReservationBook;
  friend class StorageTable;

  std::unique_ptr<Backend> backend_;
  Geometry geometry_;
  std::optional<FileIdentity> identity_;
  std::string found_as_;  ///< the name of a file of the search path; "": it is an export's
  std::shared_ptr<WriterCount> writers_;
  std::shared_ptr<WriterReservations> reservations_;
  std::vector<std::shared_ptr<StorageAnnex>> annexes_;
  wire::Uuid reservation_key_{};
  bool recorded_ = false;   ///< the record of its writers has been read
  std::size_t leases_ = 0;  ///< guarded by the catalogue's lock
  std::atomic<bool> replaced_{false};
  bool permanent_;
};

class StorageTable;

/// The judgement on a CLAIM that was granted.
struct GrantedClaim {
  wire::Uuid id{};           ///< see WriterRecord
  std::uint64_t serial = 0;  ///< the number of the last writer then
  bool by_record = false;  ///< the record proves that nobody else has written; else the sight does
};

/// The right to use an export in one access mode; given back by the destructor. One that is
/// unclaimed is a reader's until it takes over a claimed one.
class Lease {
 public:
  Lease(Lease&& other) noexcept = default;
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  /// Shared, because a reactor's queue may outlive the mapping that asked for it.
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  /// The geometry at the last look.
  const Geometry& geometry() const { return geometry_; }
  /// The same, as clients are told.
  Geometry told_geometry() const { return storage_->told(geometry_); }
  /// Takes over the growth of the storage. Never blocks.
  ///
  /// Threads: its user's.
  void look_again() { grow(geometry_, storage_->backend().present_size()); }
  wire::AccessMode mode() const { return mode_; }
  bool writable() const { return mode_ != wire::AccessMode::read_only && !unclaimed_; }
  bool unclaimed() const { return unclaimed_; }
  void take_over(Lease claimed) {
    unclaimed_ = std::exchange(claimed.unclaimed_, true);
    writer_ = claimed.writer_;
    found_ = claimed.found_;
  }
  /// None: it was not made by a CLAIM.
  const std::optional<GrantedClaim>& granted() const { return granted_; }
  /// The client has closed the device, and sends no request to it again.
  void close() { closed_ = true; }

 private:
  friend class ReservationBook;
  friend class StorageTable;
  Lease(StorageTable& table, std::shared_ptr<Storage> storage, const Geometry& geometry,
        wire::AccessMode mode, bool unclaimed)
      : table_{table},
        storage_{std::move(storage)},
        geometry_{geometry},
        mode_{mode},
        unclaimed_{unclaimed} {}

  StorageTable& table_;
  std::shared_ptr<Storage> storage_;
  Geometry geometry_;
  wire::AccessMode mode_;
  bool unclaimed_;
  std::optional<GrantedClaim> granted_;
  std::optional<wire::Uuid> writer_;  ///< the session, once it takes part in writing
  std::uint64_t found_ = 0;           ///< ReservationBook::generation() when that session came
  std::string writer_name_;           ///< for people; "" = not told
  bool closed_ = false;
};

}  // namespace rnbd
