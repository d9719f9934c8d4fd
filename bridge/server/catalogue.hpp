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
  Rights rights = {};      ///< of those who are told; its `ro` and `rw` are the same
  std::string place = {};  ///< as ExportSpecification's
  friend bool operator==(const Referral& a, const Referral& b) {
    return a.name == b.name && a.uri == b.uri && a.rights == b.rights;
  }
};

/// Where else clients may go, as they are told.
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
  /// For so long after the start a file of the search path that is in use is waited for: the I/O of
  /// a server that was killed holds its files until it has ended.
  rtrs::Duration patience{};
  /// Keeps the records of reservations beyond a crash; null: nothing does.
  std::shared_ptr<WriterStore> reservations = {};
  /// Likewise, the records of members of mirror groups; null: no export may be one.
  std::shared_ptr<mirror::MemberStore> members = {};
  /// Another one than in the life before says that answered writes may be lost. 0: unknown.
  std::uint64_t volatile_epoch = 0;
};

/// An export with a name, as the operator of the server sees it.
struct ExportStatus {
  std::string name;
  std::uint64_t size = 0;  ///< bytes; 0 while it waits
  bool read_only = false;
  std::string trouble;  ///< why it waits for its storage; "": it is open
  bool in_use = false;  ///< it waits because somebody else has its storage
  Limits limits = {};
  ThrottleReading throttled = {};  ///< by these

  bool waits() const { return !trouble.empty(); }
};

/// The effect of a reload on the exports; all of it at once, or nothing.
struct CatalogueChange {
  std::vector<ExportSpecification> add;  ///< new, or in place of those that are removed
  std::vector<std::string> remove;       ///< names
  /// Rights, description and limits of exports that stay.
  std::vector<ExportSpecification> update;
  Rights search_rights;
  Directions directions = {};
};

/// All exports of one server. Must outlive every lease.
///
/// Threads: add() and set_search_path() before the first session; the rest any. Blocking calls are
/// not made on an event loop.
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
  /// Errors: of the request, which time does not mend (EINVAL, EEXIST, EISDIR ...): a sentence
  ///         that names the export and the remedy.
  tl::expected<void, Failure> add(const ExportSpecification& specification);
  /// Tries once to open the waiting exports. True: some export is open, or waits for another
  /// reason. May block as opening does.
  ///
  /// Threads: any, one at a time.
  bool open_waiting();
  /// Some export waits.
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
  /// Opens the storage of new exports, and puts the change into force. It changes nothing if an
  /// export cannot be opened now, or if it shall only check. If a client has a removed export open,
  /// the storage stays until the client closes it. Waits some seconds for an attempt to open
  /// waiting exports; may block as opening does.
  ///
  /// Errors: a sentence for each fault; none: it is done.
  ///
  /// Threads: any.
  std::vector<std::string> change(CatalogueChange wanted, bool check_only);
  /// Why there is no search path yet; "": there is one, or none was set.
  std::string trouble_with_search_path() const;

  /// The name of an export leads to another storage by now: its file was deleted or replaced, and
  /// is not in use, or a device was taken away. Never blocks.
  bool is_stale(std::string_view name) const;
  /// Puts the present storage of the name in place of the old one. If there is none, a deleted file
  /// stays, and the export of a device has no storage until the next call. May block as opening
  /// does.
  void renew(std::string_view name);
  /// Why an export that has a name has no storage now.
  std::string trouble_of(std::string_view name) const;

  /// The rights of a user on an export, or on the files of the search path, under this name.
  Permission permission(std::string_view name, const User& user) const;
  /// The export has a list of users with rights.
  bool has_rights(std::string_view name) const;
  /// Of the files below the search path; before the first session, or by a reload.
  void set_search_rights(Rights rights);
  /// Likewise.
  void set_directions(Directions directions);
  Directions directions() const;
  /// The URI of a name that another server has now, also in another spelling of a file's path, and
  /// whatever is below the search path; "": none has it.
  std::string referral_of(std::string_view name) const;
  /// Clients are told that a file is not there without a look at it, but not sooner than otherwise.
  void look_in_vain(std::string_view owner, std::string_view device_name) const;
  /// The name of the session's or the user's own directory in the search path.
  const std::string& owner_of_files(const std::string& session_name, const std::string& user) const;

  bool has(std::string_view name) const;
  bool has_search_path() const { return !search_directory_.empty(); }

  /// The lines of OPENs: by file name for opening a file, and one for the state directory. A server
  /// has one state directory, so all reservations hang when one does.
  OpenLines& lines() { return lines_; }
  std::string line_of_file(std::string_view owner, std::string_view device_name) const;
  static std::string line_of_reservations() { return {}; }

  /// reserve() where there is nothing to record: a session that reads only, or that has the
  /// storage open for writing already and ends nobody's part. False: it is something else. Never
  /// blocks.
  bool rejoin(Lease& lease, const wire::Uuid& session, OpenKind open_kind);
  /// The session takes part in writing from here on. May block.
  ///
  /// Errors: of the store.
  tl::expected<void, std::string> reserve(Lease& lease, const wire::Uuid& session,
                                          OpenKind open_kind);
  /// Names the writer of this lease for messages to refused clients: "'vm1' (10.0.0.5:40312)".
  void name_writer(Lease& lease, const std::string& who);
  /// "'vm1' (10.0.0.5:40312) writes to it", "somebody else writes to it" if nobody is named.
  std::string who_writes(const WriterCount* storage) const;
  /// The same for an export; "": nobody. None: there is no such export, or it has no storage.
  std::optional<std::string> who_has(std::string_view name) const;
  /// Another number than before, of the same upper half: another session has had it for writing in
  /// between. 0: a reader, which does not need it. Never blocks. Of an unclaimed lease: the number
  /// of the last writer; 0 while one is there.
  std::uint64_t writer_serial(const Lease& lease) const;
  /// The number that the user of an unclaimed lease has to show with a CLAIM. Never blocks.
  std::uint64_t look(const Lease& lease) const;
  /// The right to write, for an unclaimed lease with a look(). It makes no reservation yet. Never
  /// blocks.
  ///
  /// Errors: EPERM (too many writers), ESTALE (others may have written since that look).
  tl::expected<Lease, int> claim(const Lease& lease, const wire::Claim& seen);
  /// No other session can have written between the look of `seen` and that of `granted`, or it was
  /// a look at a lease with the right to write.
  bool saw_as_much(const wire::Claim& seen, const wire::Claim& granted) const;
  /// Ends all reservations of the session, also for the next life of the server: writes that its
  /// client has in flight are not carried out when it comes again. May block.
  ///
  /// Errors: of the store.
  tl::expected<void, std::string> expel(const wire::Uuid& session);
  /// Sessions that left do not take part any more, which is to be recorded.
  bool has_left() const;
  /// May block.
  void record_left();
  /// The server ends: a session that leaves from here on is only cut off, as in a crash.
  void end();
  /// Which life of this server keeps the storage open; 0: it is open while somebody uses it.
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
  /// That of an export that has a name; null: it is a file of the search path.
  std::shared_ptr<Throttle> throttle_of(std::string_view name) const;
  /// Nobody waits any more because of a limit.
  void lift_limits();
  /// Of an export that is open.
  const WriterCount* writers(std::string_view name) const;

  /// The exports that have a name, in the order of their names; the descriptions say which of them
  /// somebody may write to. Of a user those that he may open only; null: all.
  std::vector<wire::ExportName> list(const User* user = nullptr) const;
  /// The same exports with their sizes, rights and states, and what else is of these kinds. A user
  /// who may not open anything here is told of no addresses.
  std::vector<wire::DirectoryEntry> directory(const User* user = nullptr,
                                              std::uint32_t kinds = wire::kDirectoryExports) const;

  /// Lets go of storage; the last one closes it. May block as any file access may.
  void close(std::shared_ptr<Storage> storage);

 private:
  friend class Lease;
  struct FileKey {
    FileIdentity identity;
    bool writable = false;
    friend auto operator<=>(const FileKey&, const FileKey&) = default;
  };
  struct Named {
    std::shared_ptr<Storage> storage;  ///< null while it waits; guarded by mutex_
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
  /// Whether to try once more to open a storage in use; if so, some time has passed.
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
  /// Somebody may still be about to give one of them a storage.
  std::vector<NamedExports::node_type> removed_;
  std::timed_mutex admin_mutex_;  ///< around open_waiting() and change(); taken before mutex_
  std::vector<Waiting> waiting_;  ///< changed by these two, under mutex_
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

/// The fault of an export's name, as the end of a sentence; "" = none.
std::string fault_of_name(std::string_view name);
/// The same for its description.
std::string fault_of_description(std::string_view description);

}  // namespace rnbd
