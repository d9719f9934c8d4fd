// SPDX-License-Identifier: BSD-3-Clause
// The exports of a server: names, the storage behind them, and the right to write to it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/directory.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/lease.hpp"
#include "bridge/server/mirror/seat.hpp"
#include "bridge/server/open_lines.hpp"
#include "bridge/server/rights.hpp"
#include "bridge/server/search_path.hpp"
#include "bridge/server/throttle.hpp"
#include "bridge/server/writer_reservations.hpp"
#include "rdma/core/time.hpp"

namespace rnbd {

/// One line of the configuration.
struct ExportSpecification {
  std::string name;
  std::string storage;  ///< as open_backend() understands it
  std::string description;
  bool read_only = false;
  bool direct = false;
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

/// Why a file was not opened.
struct Refusal : Failure {
  Refusal(Failure failure, const WriterCount* in_use = nullptr)
      : Failure{std::move(failure)}, writers{in_use} {}
  const WriterCount* writers;  ///< EPERM: the other writers
};

using BackendOpener = std::function<tl::expected<std::unique_ptr<Backend>, Failure>(
    const std::string& specification, const BackendOptions& options)>;

struct CatalogueOptions {
  bool direct = false;      ///< O_DIRECT for every export
  bool use_uring = true;    ///< false: a thread pool instead of io_uring
  bool make_files = true;   ///< BackendOptions: false for a look
  std::size_t queues = 1;   ///< BackendOptions: as many as there are reactors
  BackendOpener open = {};  ///< empty: open_backend()
  rtrs::Log log = {};       ///< given to the backends, as the next
  std::function<void()> on_loss = {};
  /// For this long after the start, an OPEN waits for a file of the search path that is in use: I/O
  /// of a killed server still holds its files.
  rtrs::Duration patience{};
  /// Stores the records of reservations beyond a crash; null: they are lost.
  std::shared_ptr<WriterStore> reservations = {};
  /// Likewise, the records of members of mirror groups; null: no export may be one.
  std::shared_ptr<mirror::MemberStore> members = {};
  /// If it differs from the last run's, answered writes may have been lost. 0: unknown.
  std::uint64_t volatile_epoch = 0;
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
/// Threads: add() and set_search_path() before the first session; the rest any. Event loops must
///          not make blocking calls.
class ExportCatalogue {
 public:
  explicit ExportCatalogue(CatalogueOptions options);
  ~ExportCatalogue();
  ExportCatalogue(const ExportCatalogue&) = delete;
  ExportCatalogue& operator=(const ExportCatalogue&) = delete;

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
  /// The exports that have a name, in the order of their names.
  std::vector<ExportStatus> exports() const;
  /// The exports with a name whose blocks clients can map.
  std::vector<std::pair<std::string, std::shared_ptr<Storage>>> bricks() const;
  /// Lets clients open files below a directory by name, after the exports that have one. If the
  /// directory is not there, it waits as an export does.
  ///
  /// Errors: EINVAL, ENOTDIR, with the remedy.
  tl::expected<void, Failure> set_search_path(const std::string& directory);
  /// Opens the storage of new exports, and puts the change into force. Nothing changes if an export
  /// cannot be opened now, or with `check_only`. If a client has a removed export open, the storage
  /// stays until the client closes it. Waits some seconds for a running open_waiting(), and may
  /// block as opening does.
  ///
  /// Errors: a sentence for each mistake; no sentence is success.
  ///
  /// Threads: any.
  std::vector<std::string> change(CatalogueChange wanted, bool check_only);
  /// The reason for a missing search path; "": it exists, or none was set.
  std::string trouble_with_search_path() const;

  /// True if the name of an export no longer leads to its open storage: an unused file was deleted
  /// or replaced, or a device was removed. Never blocks.
  bool is_stale(std::string_view name) const;
  /// Opens the storage that the name leads to now, in place of the old one. If there is none, a
  /// deleted file stays open, and the export of a device has no storage until the next call. May
  /// block as opening does.
  void renew(std::string_view name);
  /// The reason why a named export has no storage now.
  std::string trouble_of(std::string_view name) const;

  /// The rights of a user on an export, or on the files of the search path, under this name.
  Permission permission(std::string_view name, const User& user) const;
  /// True if the export has a list of users with rights.
  bool has_rights(std::string_view name) const;
  /// Sets the rights on files below the search path; before the first session, or by a reload.
  void set_search_rights(Rights rights);
  /// Likewise.
  void set_directions(Directions directions);
  Directions directions() const;
  /// The URI of an export that another server has, even if a file of this name exists below the
  /// search path. Other spellings of the same path match, too. "": no other server has it.
  std::string referral_of(std::string_view name) const;
  /// Looks for a file and drops the result. So a client without rights, which gets the answer that
  /// there is no such file, gets it after the usual time.
  void look_in_vain(std::string_view owner, std::string_view device_name) const;
  /// The name of the session's or the user's own directory in the search path.
  const std::string& owner_of_files(const std::string& session_name, const std::string& user) const;

  bool has(std::string_view name) const;
  bool has_search_path() const { return !search_directory_.empty(); }

  /// The queues of OPENs: one for each file, and one for the state directory. A server has one
  /// state directory, so one hanging reservation holds up all.
  OpenLines& lines() { return lines_; }
  std::string line_of_file(std::string_view owner, std::string_view device_name) const;
  static std::string line_of_reservations() { return {}; }

  /// Does the work of reserve() if there is nothing to record: the session only reads, or has the
  /// storage open for writing already and ends no other reservation. False: call reserve(). Never
  /// blocks.
  bool rejoin(Lease& lease, const wire::Uuid& session, OpenKind open_kind);
  /// Lets the session take part in writing from now on. May block.
  ///
  /// Errors: of the store.
  tl::expected<void, std::string> reserve(Lease& lease, const wire::Uuid& session,
                                          OpenKind open_kind);
  /// Names the writer of this lease for messages to refused clients: "'vm1' (10.0.0.5:40312)".
  void name_writer(Lease& lease, const std::string& who);
  /// "'vm1' (10.0.0.5:40312) writes to it"; "somebody else writes to it" if no writer has a name.
  std::string who_writes(const WriterCount* storage) const;
  /// The same for an export; "": no writer. None: there is no such export, or it has no storage.
  std::optional<std::string> who_has(std::string_view name) const;
  /// A number that changes when another session has had the storage for writing in between; its
  /// upper half stays. 0 for a reader, which does not need it. Of an unclaimed lease it is the
  /// number of the last writer, or 0 while there is one. Never blocks.
  std::uint64_t writer_serial(const Lease& lease) const;
  /// True if the operator has ended the writing of this lease's session, and no other has written
  /// since. Never blocks.
  bool was_expelled(const Lease& lease) const;
  /// The number that the user of an unclaimed lease has to show with a CLAIM. Never blocks.
  std::uint64_t look(const Lease& lease) const;
  /// Gives an unclaimed lease the right to write, after a look(). It makes no reservation yet.
  /// Never blocks.
  ///
  /// Errors: EPERM (too many writers), ESTALE (others may have written since that look).
  tl::expected<Lease, int> claim(const Lease& lease, const wire::Claim& seen);
  /// True if no other session can have written between the looks of `seen` and `granted`, or if
  /// `seen` is from a lease with the right to write.
  bool saw_as_much(const wire::Claim& seen, const wire::Claim& granted) const;
  /// Ends all reservations of the session, and records that for the next run of the server. If the
  /// client comes again, its writes in flight are refused. May block.
  ///
  /// Errors: of the store.
  tl::expected<void, std::string> expel(const wire::Uuid& session);
  /// True if sessions have left and record_left() must record that they do not take part any more.
  bool has_left() const;
  /// May block.
  void record_left();
  /// The server is stopping. A session that leaves from now on keeps its reservation, as in a
  /// crash.
  void end();
  /// The number of this run of the server, for storage that it keeps open; 0: the storage is open
  /// only while it is used.
  std::uint32_t life_of(const Lease& lease) const {
    return lease.storage()->permanent() ? life_ : 0;
  }

  /// Never blocks.
  ///
  /// Errors: ENOENT, EBUSY (somebody else has its storage), EAGAIN (its storage is not there),
  ///         EROFS (the export is read-only), EPERM (too many writers).
  tl::expected<Lease, int> open_named(std::string_view name, const Access& access);
  /// Opens a file below the search path. May block as any file access may.
  ///
  /// Errors: as SearchPath::find(), EAGAIN (the directory is not there yet), EROFS, EPERM, or the
  ///         backend's; the text is for the log.
  tl::expected<Lease, Refusal> open_file(std::string_view owner, std::string_view device_name,
                                         const Access& access);
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

  /// Drops a reference to storage; the last one closes it. May block as any file access may.
  void close(std::shared_ptr<Storage> storage);

 private:
  friend class Lease;
  struct FileKey {
    FileIdentity identity;
    bool writable = false;
    friend auto operator<=>(const FileKey&, const FileKey&) = default;
  };
  struct Named {
    std::shared_ptr<Storage> storage;  ///< null while the export waits; guarded by mutex_
    Geometry geometry;                 ///< likewise; read-only when only the export is
    ExportSpecification specification;
    std::string lost = {};  ///< why it has no storage any more; guarded by mutex_
    bool removed = false;   ///< by a reload; guarded by mutex_
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
  using MaybeIdentity = std::optional<FileIdentity>;

  BackendOptions backend_options(bool read_only) const;
  tl::expected<std::shared_ptr<Storage>, Failure> open_for_export(
      const ExportSpecification& specification);
  const Rights& rights_of(std::string_view name) const;
  void add_directions(const User* user, bool may_open, std::uint32_t kinds,
                      std::vector<wire::DirectoryEntry>& entries) const;
  bool is_awaited_by_writer(const FileIdentity& identity) const;
  void commit(CatalogueChange& wanted, std::vector<Added> added);
  void serve(Named& named, std::shared_ptr<Storage> storage, bool read_only);
  bool try_waiting(Waiting& waiting);
  bool try_search_path();
  tl::expected<void, Failure> open_search_path();
  std::shared_ptr<const SearchPath> search_path() const;
  int why_not_open(std::string_view name) const;
  /// True: try again to open storage in use. In that case the function has waited a little.
  bool wait_for(const Failure& failure, bool& told) const;
  tl::expected<std::shared_ptr<Storage>, Failure> open_storage(const std::string& storage,
                                                               const BackendOptions& options,
                                                               const MaybeIdentity& identity,
                                                               bool permanent);
  tl::expected<std::shared_ptr<Storage>, Failure> open_found(const FoundFile& file,
                                                             std::string_view device_name,
                                                             bool writable);
  tl::expected<Lease, Refusal> lease_found(const FoundFile& file, std::string_view device_name,
                                           const Access& access);
  bool is_present(const WriterReservations& reservations, const wire::Uuid& key) const;
  tl::expected<void, std::string> reserve_in(WriterReservations& reservations,
                                             const wire::Uuid* key, const wire::Uuid& session,
                                             OpenKind open_kind);
  tl::expected<void, std::string> expel_from(WriterReservations& reservations,
                                             const wire::Uuid& key, const wire::Uuid& session,
                                             std::unique_lock<std::mutex>& lock);
  tl::expected<void, std::string> save(const WriterReservations& reservations,
                                       const wire::Uuid& key, std::unique_lock<std::mutex>& lock);
  tl::expected<void, std::string> record_left_of(const WriterReservations& reservations,
                                                 const wire::Uuid& key,
                                                 std::unique_lock<std::mutex>& lock);
  std::shared_ptr<std::mutex> lock_of(const FileIdentity& identity);
  std::shared_ptr<Storage> already_open(const FileIdentity& identity, bool writable);
  tl::expected<Lease, int> lease(std::shared_ptr<Storage> storage, const Geometry& geometry,
                                 const Access& access);
  std::shared_ptr<WriterCount> writers_of(const MaybeIdentity& identity, const wire::Uuid& key);
  std::shared_ptr<WriterReservations> reservations_of(const MaybeIdentity& identity,
                                                      const wire::Uuid& key);
  std::shared_ptr<mirror::Seat> seat_of(const wire::Uuid& key);
  void forget_users_of(const wire::Uuid& key);
  std::string writers_in_words(const WriterCount* storage) const;
  void give_back(const Lease& lease);
  void forget_writer(const Lease& lease);

  CatalogueOptions options_;
  std::chrono::steady_clock::time_point impatient_from_;
  NamedExports named_;  ///< guarded by mutex_; changed by change() only after the start
  /// Kept, because another thread may still be about to give one of them its storage.
  std::vector<NamedExports::node_type> removed_;
  std::timed_mutex admin_mutex_;  ///< around open_waiting() and change(); taken before mutex_
  std::vector<Waiting> waiting_;  ///< changed by open_waiting() and change(), under mutex_
  std::string search_directory_;  ///< constant after the start; "": none
  std::shared_ptr<const SearchPath> search_path_;  ///< null while it waits; guarded by mutex_
  Rights search_rights_;                           ///< guarded by mutex_
  Directions directions_;                          ///< guarded by mutex_
  std::string why_no_search_path_;                 ///< guarded by mutex_

  const std::uint32_t life_ = std::random_device{}() | 1U;  ///< of this process; never 0
  std::mutex reservation_mutex_;                            ///< one reservation is taken at a time
  mutable std::mutex mutex_;  ///< guards the maps below and all writer counts; never held for I/O
  std::map<FileIdentity, std::shared_ptr<WriterCount>> writers_;
  std::map<wire::Uuid, std::shared_ptr<WriterCount>>
      writers_by_key_;  ///< of storages that are no file
  std::map<FileIdentity, std::shared_ptr<WriterReservations>>
      reservations_;  ///< of storages without a key
  std::map<wire::Uuid, std::shared_ptr<WriterReservations>> reservations_by_key_;
  std::map<wire::Uuid, std::shared_ptr<mirror::Seat>> seats_;
  std::map<const WriterCount*, std::multiset<std::string>> writer_names_;
  std::set<wire::Uuid> left_;  ///< keys of the records that record_left() is to save
  bool ending_ = false;
  std::map<FileKey, std::weak_ptr<Storage>> files_;
  /// Held while the file is opened or closed, so that the next user does not find it still locked.
  /// One for each file: a file that hangs does not hold up the others.
  std::map<FileIdentity, std::weak_ptr<std::mutex>> file_locks_;
  OpenLines lines_;
};

/// The mistake in an export's name, as the end of a sentence; "" = none.
std::string fault_of_name(std::string_view name);
/// The same for its description.
std::string fault_of_description(std::string_view description);

}  // namespace rnbd
