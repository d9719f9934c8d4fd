// SPDX-License-Identifier: BSD-3-Clause
// The exports of a server: names, the storage behind them, and the right to write to it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/directory.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/catalogue_options.hpp"
#include "bridge/server/evicted_clients.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/lease.hpp"
#include "bridge/server/open_lines.hpp"
#include "bridge/server/reservation_book.hpp"
#include "bridge/server/rights.hpp"
#include "bridge/server/search_path.hpp"
#include "bridge/server/searched_files.hpp"
#include "bridge/server/storage_table.hpp"
#include "bridge/server/throttle.hpp"

namespace rnbd {

/// One line of the configuration.
struct ExportSpecification {
  std::string name;
  std::string storage;  ///< as open_backend() understands it
  std::string description;
  bool read_only = false;
  bool direct = false;
  bool hidden = false;  ///< it is no disk, and in no list
  Rights rights = {};
  Limits limits = {};
  unsigned line = 0;       ///< of the configuration file; 0 = on the command line
  std::string place = {};  ///< "FILE:LINE:COLUMN: " likewise; ""
};

/// An export that another server has.
struct Referral {
  std::string name;
  std::string uri;
  Rights rights = {};      ///< of users who learn of it; its `ro` and `rw` are equal
  std::string place = {};  ///< as ExportSpecification's
  friend bool operator==(const Referral& a, const Referral& b) {
    return a.name == b.name && a.uri == b.uri && a.rights == b.rights;
  }
};

/// Other addresses and servers that clients learn from this one.
struct Directions {
  std::vector<std::string> paths;  ///< addresses of this server
  std::vector<Referral> referrals;
  friend bool operator==(const Directions&, const Directions&) = default;
};

/// The room that a file may still need, and its file system has.
///
/// Units: bytes.
struct StorageSpace {
  std::uint64_t unallocated = 0;  ///< of the file
  std::uint64_t free = 0;         ///< of the file system, for others than root
  std::uint64_t whole = 0;        ///< the file system
};

/// An export with a name, as the operator of the server sees it.
struct ExportStatus {
  std::string name;
  std::uint64_t size = 0;  ///< bytes; 0 while it waits
  bool read_only = false;
  std::string trouble;  ///< why it waits for its storage; "": it is open
  bool in_use = false;  ///< it waits because another program has its storage
  Limits limits = {};
  ThrottleReading throttled = {};               ///< by `limits`
  std::optional<std::uint64_t> shrunk_to = {};  ///< bytes; none: `size` is there
  std::string displaced = {};  ///< that clients have other storage than its path names; "": no
  std::optional<StorageSpace> space = {};  ///< of a file that clients may write; seen lately
  wire::Uuid uuid{};                       ///< zeros: not known, as while it waits

  bool waits() const { return !trouble.empty(); }
};

/// The changes that a reload makes to the exports. They happen together, or not at all.
struct CatalogueChange {
  std::vector<ExportSpecification> add;  ///< new exports, and replacements of removed ones
  std::vector<std::string> remove;       ///< names
  /// Rights, description and limits of exports that stay.
  std::vector<ExportSpecification> update;
  Rights search_rights;
  Directions directions = {};
};

/// All exports of one server. Must outlive every lease.
///
/// Threads: add() before the first session; the rest any. Event loops must not make blocking calls.
///          One lock guards the state of all parts. It is taken last, and never held for I/O.
///          Before it come the lock of an administrator, or that of a file, and then those of
///          ReservationBook.
class ExportCatalogue {
 public:
  explicit ExportCatalogue(CatalogueOptions options);
  ~ExportCatalogue();
  ExportCatalogue(const ExportCatalogue&) = delete;
  ExportCatalogue& operator=(const ExportCatalogue&) = delete;

  /// The right to write, and its records.
  ReservationBook& reservations() { return reservations_; }
  const ReservationBook& reservations() const { return reservations_; }
  /// The storages that are open.
  StorageTable& storages() { return storages_; }
  /// The files that clients open by name.
  SearchedFiles& files() { return files_; }
  const SearchedFiles& files() const { return files_; }

  /// Opens an export and keeps it open. Two exports of the same file share one storage. If the
  /// storage is in use by another program for now, or is not there, the export waits until
  /// open_waiting() has opened it.
  ///
  /// Errors: only those that a retry cannot cure (EINVAL, EEXIST, EISDIR ...): a sentence with the
  ///         export's name and the remedy.
  tl::expected<void, Failure> add(const ExportSpecification& specification);
  /// Tries once to open the waiting exports. True: some export is open, or waits for another
  /// reason. May block as opening does.
  ///
  /// Threads: any, one at a time.
  bool open_waiting();
  /// True if some export waits.
  bool waits() const;
  /// The exports that have a name, in the order of their names, without hidden ones.
  std::vector<ExportStatus> exports() const;
  /// The storages of exports with a name.
  std::vector<std::pair<std::string, std::shared_ptr<Storage>>> storages() const;
  const ServerAnnexes& annexes() const { return options_.annexes; }
  /// Opens the storage of new exports, and puts the change into force. Nothing changes if an export
  /// cannot be opened now, or with `check_only`. If a client has a removed export open, the storage
  /// stays until the client closes it. Waits some seconds for a running open_waiting(), and may
  /// block as opening does.
  ///
  /// Errors: a sentence for each mistake; no sentence is success.
  ///
  /// Threads: any.
  std::vector<std::string> change(CatalogueChange wanted, bool check_only);

  /// Looks at the paths of the exports that clients have open, and of some others in turn. Do they
  /// lead to the storage that is open, and what space is left there? Returns the names of those
  /// that do not, with ExportStatus::displaced. May block as any file access may.
  ///
  /// Threads: any, one at a time.
  std::vector<ExportStatus> look_at_paths();
  /// Lets all storage but files look whether it is still there. Never blocks.
  void look_at_devices() const;
  /// The files of the search path that clients have open, and that were deleted or replaced.
  std::vector<ExportStatus> displaced_files() const;
  /// True if the name of an export no longer leads to its open storage: an unused file was deleted
  /// or replaced, or a device was removed. Never blocks.
  bool is_stale(std::string_view name) const;
  /// Opens the storage that the name leads to now, in place of the old one. If there is none,
  /// storage that still works stays open, and the export of a lost device has no storage until the
  /// next call. May block as opening does.
  void renew(std::string_view name);
  /// True if nobody has the export open, and only a question to another server tells whether its
  /// storage has grown. Never blocks.
  bool is_size_unsure(std::string_view name) const;
  /// Asks that server, and takes over a larger size if still nobody has the export open. May block
  /// as DistantSize::ask() does.
  ///
  /// Threads: any, one at a time for each name.
  void ask_size(std::string_view name);
  /// The reason why a named export has no storage now.
  std::string trouble_of(std::string_view name) const;

  /// The clients that open nothing, whatever the rights say.
  EvictedClients& evicted() { return evicted_; }
  const EvictedClients& evicted() const { return evicted_; }
  /// The rights of a user on an export, or on the files of the search path, under this name.
  Permission permission(std::string_view name, const User& user) const;
  /// True if the export has a list of users with rights.
  bool has_rights(std::string_view name) const;
  /// Sets the rights on files below the search path; before the first session, or by a reload.
  void set_search_rights(Rights rights);
  /// Sets the referrals; before the first session, or by a reload.
  void set_directions(Directions directions);
  Directions directions() const;
  /// The URI of an export that another server has, even if a file of this name exists below the
  /// search path. Other spellings of the same path match, too. "": no other server has it.
  std::string referral_of(std::string_view name) const;
  bool has(std::string_view name) const;

  /// The queues of OPENs: one for each file, and one for the state directory. A server has one
  /// state directory, so one hanging reservation holds up all.
  OpenLines& lines() { return lines_; }

  /// As ReservationBook::who_writes() for an export; "": no writer. Of storage that is closed to
  /// clients of these features: StorageAnnex::closed_to(). None: there is no such export, or it has
  /// no storage.
  std::optional<wire::WhoAnswer> who_has(std::string_view name, std::uint64_t features) const;
  /// Never blocks.
  ///
  /// Errors: ENOENT, EBUSY (somebody else has its storage), EAGAIN (its storage is not there),
  ///         EROFS (the export is read-only), EPERM (too many writers).
  tl::expected<Lease, int> open_named(std::string_view name, const Access& access);
  /// The throttle of a named export; null: it is a file of the search path.
  std::shared_ptr<Throttle> throttle_of(std::string_view name) const;
  /// Lifts all limits, so that no request waits for them any more.
  void lift_limits();
  /// The writers of an open export.
  const WriterCount* writers(std::string_view name) const;

  /// The named exports, in the order of their names. The descriptions say which of them are
  /// writable. With a user, only the exports that the user may open; null: all.
  std::vector<wire::ExportName> list(const User* user = nullptr) const;
  /// The same exports with their sizes, rights and states, and the other entries of these kinds. A
  /// user without any right here gets no addresses.
  std::vector<wire::DirectoryEntry> directory(const User* user = nullptr,
                                              std::uint32_t kinds = wire::kDirectoryExports) const;

 private:
  /// Exports that nobody has open, at each look at the paths. A look each 5 s costs the same
  /// however many there are.
  static constexpr std::size_t kUnusedAtOnce = 1000;

  struct PathLook;
  /// The result of the last look at an export's path.
  enum class PathLeads : std::uint8_t { unknown, to_it, elsewhere, nowhere };
  struct Named {
    std::shared_ptr<Storage> storage;  ///< null while the export waits; guarded by mutex_
    Geometry geometry;                 ///< likewise; read-only when only the export is
    ExportSpecification specification;
    std::string lost = {};  ///< why it has no storage any more; guarded by mutex_
    bool removed = false;   ///< by a reload; guarded by mutex_
    PathLeads path_leads = PathLeads::unknown;  ///< guarded by mutex_
    std::optional<StorageSpace> space = {};     ///< likewise
    std::shared_ptr<LimitSetting> limits = std::make_shared<LimitSetting>();
    std::shared_ptr<Throttle> throttle = std::make_shared<Throttle>(limits);
  };
  using NamedExports = std::map<std::string, Named, std::less<>>;
  struct Added {
    ExportSpecification specification;
    std::shared_ptr<Storage> storage;
  };
  struct Waiting {
    ExportSpecification specification;
    Failure why;  ///< error 0: it is open; guarded by mutex_
  };

  tl::expected<std::shared_ptr<Storage>, Failure> open_for_export(
      const ExportSpecification& specification);
  const Rights& rights_of(std::string_view name) const;
  void add_directions(const User* user, bool may_open, std::uint32_t kinds,
                      std::vector<wire::DirectoryEntry>& entries) const;
  bool is_awaited_by_writer(const FileIdentity& identity) const;
  void commit(CatalogueChange& wanted, std::vector<Added> added);
  void serve(Named& named, std::shared_ptr<Storage> storage,
             const ExportSpecification& specification);
  void announce(const ExportSpecification& specification, const Storage& storage) const;
  bool try_waiting(Waiting& waiting);
  int why_not_open(std::string_view name) const;
  std::vector<PathLook> next_looks();
  static bool is_displaced(const Named& named);
  static std::string displacement_of(const Named& named);

  CatalogueOptions options_;
  mutable std::mutex mutex_;  ///< the catalogue's lock; never held for I/O
  ReservationBook reservations_;
  StorageTable storages_;
  SearchedFiles files_;
  NamedExports named_;  ///< guarded by mutex_; changed by change() only after the start
  /// Kept, because another thread may still be about to give one of them its storage.
  std::vector<NamedExports::node_type> removed_;
  std::timed_mutex admin_mutex_;  ///< around open_waiting() and change(); taken before mutex_
  /// By name; changed by open_waiting() and change(), under mutex_.
  std::map<std::string, Waiting, std::less<>> waiting_;
  std::string looked_up_to_;  ///< an export's name; guarded by mutex_
  Rights search_rights_;      ///< likewise
  Directions directions_;     ///< guarded by mutex_
  OpenLines lines_;
  EvictedClients evicted_;
};

/// The mistake in an export's name, as the end of a sentence; "" = none.
std::string fault_of_name(std::string_view name);
/// The same for its description.
std::string fault_of_description(std::string_view description);

}  // namespace rnbd
