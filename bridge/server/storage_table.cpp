// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/storage_table.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rnbd {

Lease::~Lease() {
  if (storage_ != nullptr) table_.give_back(*this);
}

namespace {

/// Removes the entries of files that are closed, once there are twice as many as after the last
/// time. So an entry costs the same, however many there are.
template <class Known>
void forget_expired(Known& known) {
  constexpr std::size_t kFew = 16;
  if (known.entries.size() < known.most) return;
  std::erase_if(known.entries, [](const auto& entry) { return entry.second.expired(); });
  known.most = std::max(kFew, 2 * known.entries.size());
}

}  // namespace

BackendOptions StorageTable::backend_options(bool read_only) const {
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

tl::expected<std::shared_ptr<Storage>, Failure> StorageTable::open(
    const std::string& storage, const BackendOptions& options,
    const std::optional<FileIdentity>& identity, const std::string& found_as) {
  auto backend = options_.open(storage, options);
  if (!backend) return tl::unexpected(backend.error());
  if (found_as.empty() && options_.lack != nullptr) {
    if (Failure lack = options_.lack(storage); lack.error != 0) return tl::unexpected(lack);
  }
  auto geometry = geometry_of((*backend)->info(), options.read_only);
  if (!geometry) return tl::unexpected(Failure{EINVAL, storage + ": " + geometry.error()});
  const auto admission = reservations_.admit(**backend, options.read_only);
  std::vector<std::shared_ptr<StorageAnnex>> annexes;
  for (const auto& annex : options_.annexes)
    if (auto part = annex->open_storage(admission.key, reservations_.life()))
      annexes.push_back(std::move(part));
  const std::lock_guard lock{mutex_};
  auto opened = std::make_shared<Storage>(std::move(*backend), *geometry, found_as.empty());
  opened->identity_ = identity;
  opened->found_as_ = found_as;
  opened->annexes_ = std::move(annexes);
  reservations_.attach(*opened, admission);
  if (identity) {
    forget_expired(files_);
    files_.entries[FileKey{*identity, !geometry->read_only}] = opened;
  }
  return opened;
}

std::shared_ptr<Storage> StorageTable::already_open(const FileIdentity& identity, bool writable) {
  const std::lock_guard lock{mutex_};
  for (const bool open_for_writing : {true, false}) {
    if (writable && !open_for_writing) break;
    const auto known = files_.entries.find(FileKey{identity, open_for_writing});
    if (known == files_.entries.end()) continue;
    auto storage = known->second.lock();
    // Another device may have got the number of one that was taken away.
    if (storage != nullptr && storage->backend().whereabouts() != Whereabouts::gone) return storage;
  }
  return nullptr;
}

// ---- Leases -------------------------------------------------------------------------------------

tl::expected<Lease, int> StorageTable::lease(std::shared_ptr<Storage> storage,
                                             const Geometry& geometry, const Access& access) {
  const bool writes = access.mode != wire::AccessMode::read_only;
  const std::lock_guard lock{mutex_};
  if (writes && geometry.read_only) return tl::unexpected(EROFS);
  // The step that may lack memory comes first: a writer that is counted has a lease.
  in_use_.insert(storage.get());
  const int error = writes && !access.unclaimed ? reservations_.take(*storage, access) : 0;
  if (error != 0 && storage->leases_ == 0) in_use_.erase(storage.get());
  if (error != 0) return tl::unexpected(error);
  ++storage->leases_;
  return Lease{*this, std::move(storage), geometry, access.mode, writes && access.unclaimed};
}

void StorageTable::give_back(const Lease& lease) {
  const std::lock_guard lock{mutex_};
  if (--lease.storage_->leases_ == 0) in_use_.erase(lease.storage_.get());
  if (lease.writable()) reservations_.leave(lease);
}

void StorageTable::close(std::shared_ptr<Storage> storage) {
  // A storage that is no file stays open as long as the server runs.
  const auto mutex = storage->identity_ ? lock_of(*storage->identity_) : nullptr;
  std::unique_lock<std::mutex> one_at_a_time;
  if (mutex != nullptr) one_at_a_time = std::unique_lock{*mutex};
  storage.reset();
}

std::shared_ptr<std::mutex> StorageTable::lock_of(const FileIdentity& identity) {
  const std::lock_guard lock{mutex_};
  forget_expired(file_locks_);
  std::weak_ptr<std::mutex>& known = file_locks_.entries[identity];
  auto mutex = known.lock();
  if (mutex == nullptr) known = mutex = std::make_shared<std::mutex>();
  return mutex;
}

}  // namespace rnbd
