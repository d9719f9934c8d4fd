// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/catalogue.hpp"

#include <cerrno>
#include <thread>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "rdma/core/plant.hpp"

namespace rnbd {

Lease::~Lease() {
  if (storage_ != nullptr) catalogue_.give_back(*this);
}

namespace {

/// Between two looks at a storage that is in use.
constexpr auto kRetry = std::chrono::milliseconds{50};

/// Removes the entries of files that are closed.
template <class Map>
void forget_expired(Map& map) {
  std::erase_if(map, [](const auto& entry) { return entry.second.expired(); });
}

/// The key of a storage's reservations in the store; zeros: they are not stored. Numbers of devices
/// are no part of it, since another boot gives others.
wire::Uuid reservation_key(const BackendInfo& info) {
  return info.outlives_server ? info.uuid : wire::Uuid{};
}

}  // namespace

ExportCatalogue::ExportCatalogue(CatalogueOptions options) : options_{std::move(options)} {
  if (!options_.open) options_.open = open_backend;
  if (options_.patience > rtrs::Duration::zero()) {
    impatient_from_ = std::chrono::steady_clock::now() + options_.patience;
  }
}

ExportCatalogue::~ExportCatalogue() = default;

// ---- Files of the search path -------------------------------------------------------------------

bool ExportCatalogue::wait_for(const Failure& failure, bool& told) const {
  const bool worth_it = failure.error == EBUSY && options_.patience > rtrs::Duration::zero() &&
                        std::chrono::steady_clock::now() < impatient_from_;
  if (!worth_it) return false;
  if (!std::exchange(told, true) && options_.log) {
    options_.log(rtrs::LogLevel::warning, failure.text + "; waiting for it");
  }
  std::this_thread::sleep_for(kRetry);
  return true;
}

tl::expected<void, Failure> ExportCatalogue::set_search_path(const std::string& directory) {
  search_directory_ = directory;
  const auto opened = open_search_path();
  const bool final = !opened && (opened.error().error == EINVAL || opened.error().error == ENOTDIR);
  if (final) return opened;
  return {};
}

tl::expected<void, Failure> ExportCatalogue::open_search_path() {
  auto path = SearchPath::open(search_directory_);
  const std::lock_guard lock{mutex_};
  why_no_search_path_ = path ? "" : path.error().text;
  if (!path) return tl::unexpected(path.error());
  search_path_ = std::make_shared<const SearchPath>(std::move(*path));
  return {};
}

std::shared_ptr<const SearchPath> ExportCatalogue::search_path() const {
  const std::lock_guard lock{mutex_};
  return search_path_;
}

std::string ExportCatalogue::trouble_with_search_path() const {
  const std::lock_guard lock{mutex_};
  return why_no_search_path_;
}

BackendOptions ExportCatalogue::backend_options(bool read_only) const {
  BackendOptions options;
  options.read_only = read_only;
  options.direct = options_.direct;
  options.use_uring = options_.use_uring;
  options.make_files = options_.make_files;
  options.queues = options_.queues;
  options.log = options_.log;
  options.on_loss = options_.on_loss;
  return options;
}

// ---- Open storage -------------------------------------------------------------------------------

tl::expected<std::shared_ptr<Storage>, Failure> ExportCatalogue::open_storage(
    const std::string& storage, const BackendOptions& options, const MaybeIdentity& identity,
    bool permanent) {
  auto backend = options_.open(storage, options);
  if (!backend) return tl::unexpected(backend.error());
  auto geometry = geometry_of((*backend)->info(), options.read_only);
  if (!geometry) return tl::unexpected(Failure{EINVAL, storage + ": " + geometry.error()});
  const wire::Uuid key = reservation_key((*backend)->info());
  // An unreadable record is reported when a client wants to write.
  const bool kept = options_.reservations != nullptr && key != wire::Uuid{} && !options.read_only;
  const auto notes = kept ? (*backend)->notes() : nullptr;
  // The record must not change in between.
  std::unique_lock<std::mutex> one_at_a_time;
  if (notes != nullptr) one_at_a_time = std::unique_lock{reservation_mutex_};
  if (kept) options_.reservations->opened(key, notes);
  const auto record =
      kept ? options_.reservations->load(key) : tl::expected<WriterRecord, std::string>{};
  const auto seat = seat_of(key);
  const std::lock_guard lock{mutex_};
  if (notes != nullptr) forget_users_of(key);
  auto opened = std::make_shared<Storage>(std::move(*backend), *geometry, permanent);
  opened->identity_ = identity;
  opened->writers_ = writers_of(identity, key);
  opened->reservations_ = reservations_of(identity, key);
  if (record && opened->reservations_->record().origin == 0)
    opened->reservations_->set_record(*record);
  opened->reservation_key_ = key;
  opened->seat_ = seat;
  if (identity) {
    forget_expired(files_);
    files_[FileKey{*identity, !geometry->read_only}] = opened;
  }
  return opened;
}

/// With the lock held. Storage with notes is open for writing at one server only. If it was open
/// here before, that one was fenced off, and another server may have had it since. So the former
/// users have no access and no reservation any more, and have not seen the present content.
void ExportCatalogue::forget_users_of(const wire::Uuid& key) {
  const auto writers = writers_by_key_.find(key);
  if (writers == writers_by_key_.end()) return;
  reservations_by_key_.erase(key);
  writers->second = std::make_shared<WriterCount>(writers->second->changes() + 1);
}

/// A storage that is open for writing serves readers too.
std::shared_ptr<Storage> ExportCatalogue::already_open(const FileIdentity& identity,
                                                       bool writable) {
  const std::lock_guard lock{mutex_};
  for (const bool open_for_writing : {true, false}) {
    if (writable && !open_for_writing) break;
    const auto known = files_.find(FileKey{identity, open_for_writing});
    if (known == files_.end()) continue;
    auto storage = known->second.lock();
    // Another device may have got the number of one that was taken away.
    if (storage != nullptr && storage->backend().whereabouts() != Whereabouts::gone) return storage;
  }
  return nullptr;
}

namespace {

/// The object of a storage, which stays the same when the storage is closed and opened again.
template <class T, class Files, class Keys>
std::shared_ptr<T> kept_for(Files& files, Keys& keys, const std::optional<FileIdentity>& identity,
                            const wire::Uuid& key) {
  if (!identity && key == wire::Uuid{}) return std::make_shared<T>();
  std::shared_ptr<T>& known = identity ? files[*identity] : keys[key];
  if (known == nullptr) known = std::make_shared<T>();
  return known;
}

}  // namespace

std::shared_ptr<WriterCount> ExportCatalogue::writers_of(const MaybeIdentity& identity,
                                                         const wire::Uuid& key) {
  return kept_for<WriterCount>(writers_, writers_by_key_, identity, key);
}

/// By key where there is one: another disk may get the number that this one has.
std::shared_ptr<WriterReservations> ExportCatalogue::reservations_of(const MaybeIdentity& identity,
                                                                     const wire::Uuid& key) {
  const bool has_key = key != wire::Uuid{};
  return kept_for<WriterReservations>(reservations_, reservations_by_key_,
                                      has_key ? std::nullopt : identity, key);
}

/// May block. Looked up once: from then on this server knows best.
std::shared_ptr<mirror::Seat> ExportCatalogue::seat_of(const wire::Uuid& key) {
  if (options_.members == nullptr || key == wire::Uuid{}) return nullptr;
  {
    const std::lock_guard lock{mutex_};
    if (const auto known = seats_.find(key); known != seats_.end()) return known->second;
  }
  // An unknown epoch is that of this life only.
  const std::uint64_t epoch = options_.volatile_epoch != 0 ? options_.volatile_epoch : life_;
  auto seat = std::make_shared<mirror::Seat>(options_.members, key, epoch);
  seat->load();
  const std::lock_guard lock{mutex_};
  return seats_.emplace(key, std::move(seat)).first->second;
}

tl::expected<std::shared_ptr<Storage>, Failure> ExportCatalogue::open_found(
    const FoundFile& file, std::string_view device_name, bool writable) {
  if (auto storage = already_open(file.identity, writable)) return storage;
  BackendOptions options = backend_options(!writable);
  // As at a Linux server, a reader neither keeps writers away nor waits for them.
  options.lock = writable;
  // Opens it through the descriptor, so that it is the file that was found, even if the name leads
  // elsewhere now.
  const std::string path = "/proc/self/fd/" + std::to_string(file.fd.get());
  auto opened = open_storage(path, options, file.identity, false);
  if (!opened) {
    std::string& text = opened.error().text;  // the reader knows the name, not the descriptor
    for (auto at = text.find(path); at != std::string::npos; at = text.find(path))
      text.replace(at, path.size(), in_quotes(device_name));
  }
  return opened;
}

// ---- Mappings -----------------------------------------------------------------------------------

tl::expected<Lease, int> ExportCatalogue::lease(std::shared_ptr<Storage> storage,
                                                const Geometry& geometry, const Access& access) {
  const bool writes = access.mode != wire::AccessMode::read_only;
  const std::lock_guard lock{mutex_};
  if (writes && geometry.read_only) return tl::unexpected(EROFS);
  const bool unclaimed = access.unclaimed && !RTRS_PLANTED(opening_claims);
  if (writes && !unclaimed) {
    // It shared the storage before the server's end, and the other one has returned first.
    const bool shared = access.again != wire::Uuid{} &&
                        storage->reservations_->takes_part(access.again) &&
                        storage->writers_->all_take_part();
    const auto as = shared ? wire::AccessMode::migration : access.mode;
    if (const int error = storage->writers_->take(as)) return tl::unexpected(error);
  }
  ++storage->leases_;
  return Lease{*this, std::move(storage), geometry, access.mode, writes && unclaimed};
}

tl::expected<Lease, int> ExportCatalogue::open_named(std::string_view name, const Access& access) {
  std::unique_lock lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end()) return tl::unexpected(ENOENT);
  std::shared_ptr<Storage> storage = found->second.storage;
  const Geometry geometry = found->second.geometry;
  lock.unlock();
  if (storage == nullptr) return tl::unexpected(why_not_open(name));
  return lease(std::move(storage), geometry, access);
}

const WriterCount* ExportCatalogue::writers(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  const bool open = found != named_.end() && found->second.storage != nullptr;
  return open ? found->second.storage->writers() : nullptr;
}

std::string ExportCatalogue::line_of_file(std::string_view owner,
                                          std::string_view device_name) const {
  const bool own = SearchPath::is_per_owner(search_directory_);
  return (own ? std::string{owner} + "/" : "") + std::string{device_name};
}

tl::expected<Lease, Refusal> ExportCatalogue::open_file(std::string_view owner,
                                                        std::string_view device_name,
                                                        const Access& access) {
  if (!has_search_path()) return tl::unexpected(Failure{ENOENT, "there is no such export"});
  const auto path = search_path();
  if (path == nullptr) {
    return tl::unexpected(
        Failure{EAGAIN, in_quotes(device_name) + ": " + trouble_with_search_path()});
  }
  const auto file = path->find(owner, device_name);
  if (!file) return tl::unexpected(file.error());
  bool told = false;
  while (true) {
    auto leased = lease_found(*file, device_name, access);
    if (leased || !wait_for(leased.error(), told)) return leased;
  }
}

tl::expected<Lease, Refusal> ExportCatalogue::lease_found(const FoundFile& file,
                                                          std::string_view device_name,
                                                          const Access& access) {
  const auto mutex = lock_of(file.identity);
  const std::lock_guard one_at_a_time{*mutex};
  const bool writable = access.mode != wire::AccessMode::read_only;
  auto storage = open_found(file, device_name, writable);
  if (!storage) {
    Failure failure = storage.error();
    const bool denied = failure.error == EACCES || failure.error == EPERM;
    // A file that is only readable is reported as such. A file that is not readable counts as
    // missing.
    if (denied) failure.error = writable && open_found(file, device_name, false) ? EROFS : ENOENT;
    return tl::unexpected(failure);
  }
  const Geometry geometry = (*storage)->geometry();
  const WriterCount* writers = (*storage)->writers();
  auto leased = lease(std::move(*storage), geometry, access);
  if (!leased) {
    const std::string why = leased.error() == EPERM ? who_writes(writers) : "it is read-only";
    return tl::unexpected(
        Refusal{Failure{leased.error(), in_quotes(device_name) + ": " + why}, writers});
  }
  return std::move(*leased);
}

void ExportCatalogue::close(std::shared_ptr<Storage> storage) {
  // A storage that is no file stays open as long as the server runs.
  const auto mutex = storage->identity_ ? lock_of(*storage->identity_) : nullptr;
  std::unique_lock<std::mutex> one_at_a_time;
  if (mutex != nullptr) one_at_a_time = std::unique_lock{*mutex};
  storage.reset();
}

std::shared_ptr<std::mutex> ExportCatalogue::lock_of(const FileIdentity& identity) {
  const std::lock_guard lock{mutex_};
  forget_expired(file_locks_);
  std::weak_ptr<std::mutex>& known = file_locks_[identity];
  auto mutex = known.lock();
  if (mutex == nullptr) known = mutex = std::make_shared<std::mutex>();
  return mutex;
}

// ---- Permission
// -----------------------------------------------------------------------------------

bool ExportCatalogue::has(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  return named_.find(name) != named_.end();
}

Permission ExportCatalogue::permission(std::string_view name, const User& user) const {
  const std::lock_guard lock{mutex_};
  return permission_of(rights_of(name), user);
}

bool ExportCatalogue::has_rights(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  return rights_of(name).given();
}

const Rights& ExportCatalogue::rights_of(std::string_view name) const {
  const auto found = named_.find(name);
  return found != named_.end() ? found->second.specification.rights : search_rights_;
}

void ExportCatalogue::set_search_rights(Rights rights) {
  const std::lock_guard lock{mutex_};
  search_rights_ = std::move(rights);
}

void ExportCatalogue::set_directions(Directions directions) {
  const std::lock_guard lock{mutex_};
  directions_ = std::move(directions);
}

Directions ExportCatalogue::directions() const {
  const std::lock_guard lock{mutex_};
  return directions_;
}

std::string ExportCatalogue::referral_of(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  for (const Referral& each : directions_.referrals) {
    if (is_same_file_name(each.name, name)) return each.uri;
  }
  return "";
}

void ExportCatalogue::look_in_vain(std::string_view owner, std::string_view device_name) const {
  if (const auto path = search_path()) (void)path->find(owner, device_name);
}

const std::string& ExportCatalogue::owner_of_files(const std::string& session_name,
                                                   const std::string& user) const {
  return SearchPath::is_per_user(search_directory_) ? user : session_name;
}

std::vector<wire::ExportName> ExportCatalogue::list(const User* user) const {
  std::vector<wire::ExportName> names;
  const std::lock_guard lock{mutex_};
  names.reserve(named_.size());
  for (const auto& [name, entry] : named_) {
    const Rights& rights = entry.specification.rights;
    if (user != nullptr && permission_of(rights, *user) == Permission::none) continue;
    names.push_back({name, entry.specification.description});
    if (entry.storage == nullptr || !entry.storage->writers_->anybody()) continue;
    std::string& about = names.back().description;
    about += about.empty() ? "in use" : " (in use)";
  }
  return names;
}

std::vector<wire::DirectoryEntry> ExportCatalogue::directory(const User* user,
                                                             std::uint32_t kinds) const {
  std::vector<wire::DirectoryEntry> entries;
  const std::lock_guard lock{mutex_};
  entries.reserve(named_.size());
  for (const auto& [name, named] : named_) {
    const Permission permission =
        user == nullptr ? Permission::write : permission_of(named.specification.rights, *user);
    if (permission == Permission::none) continue;
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = name;
    entry.description = named.specification.description;
    entry.waiting = named.storage == nullptr;
    entry.may_write = permission == Permission::write && !named.specification.read_only;
    if (entry.waiting) continue;
    Geometry now = named.geometry;
    grow(now, named.storage->backend().present_size());
    entry.size = now.size;
    entry.uuid = now.uuid;
    entry.may_write = entry.may_write && !now.read_only;
    entry.in_use = named.storage->writers_->anybody();
  }
  const bool may_open_files =
      has_search_path() &&
      (user == nullptr || permission_of(search_rights_, *user) != Permission::none);
  const bool may_open = !entries.empty() || may_open_files;
  if ((kinds & wire::kDirectoryExports) == 0) entries.clear();
  add_directions(user, may_open, kinds, entries);
  return entries;
}

/// With the lock held.
void ExportCatalogue::add_directions(const User* user, bool may_open, std::uint32_t kinds,
                                     std::vector<wire::DirectoryEntry>& entries) const {
  for (const Referral& each : directions_.referrals) {
    const bool may = user == nullptr || permission_of(each.rights, *user) != Permission::none;
    if ((kinds & wire::kDirectoryReferrals) == 0 || !may) continue;
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = each.name;
    entry.description = each.uri;
    entry.kind = wire::DirectoryKind::referral;
  }
  if ((kinds & wire::kDirectoryPaths) == 0 || !may_open) return;
  for (const std::string& path : directions_.paths) {
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = path;
    entry.kind = wire::DirectoryKind::path;
  }
}

}  // namespace rnbd
