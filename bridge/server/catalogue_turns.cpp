// SPDX-License-Identifier: BSD-3-Clause
// The reservations of the catalogue's storages, and how they are recorded.
#include <cerrno>

#include "bridge/server/catalogue.hpp"
#include "rdma/core/plant.hpp"

namespace rnbd {

bool ExportCatalogue::rejoin(Lease& lease, const wire::Uuid& session, Coming coming) {
  if (!lease.writable()) return true;
  const std::lock_guard lock{mutex_};
  WriterTurns& turns = *lease.storage()->turns_;
  if (session == wire::Uuid{} || !turns.is_there(session)) return false;
  if (coming == Coming::anew && turns.anybody_away()) return false;
  turns.enter(session);
  lease.writer_ = session;
  lease.storage()->writers_->take_part();
  return true;
}

tl::expected<void, std::string> ExportCatalogue::take_turn(Lease& lease, const wire::Uuid& session,
                                                           Coming coming) {
  const std::lock_guard one_at_a_time{turn_mutex_};
  WriterTurns& turns = *lease.storage()->turns_;
  const wire::Uuid& key = lease.storage()->turn_key_;
  const bool kept = options_.turns != nullptr && key != wire::Uuid{};
  if (kept) options_.turns->lock();
  auto taken = take_turn_of(turns, kept ? &key : nullptr, session, coming);
  if (kept) options_.turns->unlock();
  if (taken) {
    const std::lock_guard lock{mutex_};
    lease.writer_ = session;
    lease.storage()->writers_->take_part();
  }
  return taken;
}

/// With the lock held. False: they are of the storage as it was before it was opened anew, and the
/// record is not theirs any more.
bool ExportCatalogue::is_present(const WriterTurns& turns, const wire::Uuid& key) const {
  const auto found = turns_by_key_.find(key);
  return found != turns_by_key_.end() && found->second.get() == &turns;
}

/// `key`: null if it is not kept.
tl::expected<void, std::string> ExportCatalogue::take_turn_of(WriterTurns& turns,
                                                              const wire::Uuid* key,
                                                              const wire::Uuid& session,
                                                              Coming coming) {
  std::unique_lock lock{mutex_};
  if (key != nullptr && !is_present(turns, *key)) {
    return tl::unexpected(std::string{"the storage was opened anew meanwhile"});
  }
  if (key != nullptr && left_.contains(*key)) {
    if (auto saved = record_left_of(turns, *key, lock); !saved) return saved;
  }
  if (key != nullptr && !turns.anybody_there()) {  // another server may have had it meanwhile
    lock.unlock();
    auto known = options_.turns->load(*key);
    if (!known) return tl::unexpected(known.error());
    lock.lock();
    if (known->origin != 0) turns.set_record(*std::move(known));
  }
  const bool has_part = turns.takes_part(session);
  const bool anew = coming == Coming::anew;
  if (turns.is_there(session) ? anew && turns.anybody_away() : anew || !has_part) {
    WriterRecord next = turns.with(session, coming, life_);
    while (key != nullptr && !RTRS_PLANTED(turn_forgotten)) {
      lock.unlock();
      if (auto saved = options_.turns->save(*key, next); !saved) return saved;
      lock.lock();
      const WriterRecord now = turns.with(session, coming, life_);
      if (now == next) break;
      next = now;  // somebody has left meanwhile
    }
    turns.set_record(std::move(next));
  }
  turns.enter(session);
  return {};
}

/// Saves a record for left_. `lock` is that of mutex_, and is released meanwhile.
tl::expected<void, std::string> ExportCatalogue::save(const WriterTurns& turns,
                                                      const wire::Uuid& key,
                                                      std::unique_lock<std::mutex>& lock) {
  left_.erase(key);
  const WriterRecord record = turns.record();
  lock.unlock();
  auto saved = options_.turns->save(key, record);
  lock.lock();
  if (!saved) left_.insert(key);
  return saved;
}

std::uint64_t ExportCatalogue::look(const Lease& lease) const {
  return std::uint64_t{life_} << 32 | lease.storage()->writers_->look();
}

/// From another life of the server only the last writer is known, not the time of his last write.
tl::expected<Lease, int> ExportCatalogue::claim(const Lease& lease, const wire::Claim& seen) {
  Storage& storage = *lease.storage();
  const std::lock_guard lock{mutex_};
  const bool looked_here = seen.sight >> 32 == life_;
  const std::uint32_t changes = looked_here ? static_cast<std::uint32_t>(seen.sight) : 0;
  const bool changed =
      storage.writers_->changes() != changes ||
      (!looked_here && seen.writer_serial != storage.turns_->serial_of(wire::Uuid{}));
  if (changed && !RTRS_PLANTED(claim_unseen)) return tl::unexpected(ESTALE);
  if (const int error = storage.writers_->take(lease.mode())) return tl::unexpected(error);
  ++storage.leases_;
  return Lease{*this, lease.storage(), lease.geometry(), lease.mode(), false};
}

std::uint64_t ExportCatalogue::writer_serial(const Lease& lease) const {
  if (lease.mode() == wire::AccessMode::read_only) return 0;
  const std::lock_guard lock{mutex_};
  const WriterTurns& turns = *lease.storage()->turns_;
  if (lease.unclaimed() && turns.anybody_there()) return 0;
  return turns.serial_of(lease.writer_.value_or(wire::Uuid{}));
}

void ExportCatalogue::name_writer(Lease& lease, const std::string& who) {
  if (!lease.writable()) return;
  const std::lock_guard lock{mutex_};
  forget_writer(lease);
  lease.writer_name_ = who;
  writer_names_[lease.storage()->writers()].insert(who);
}

/// With the lock held.
void ExportCatalogue::forget_writer(const Lease& lease) {
  const auto found = writer_names_.find(lease.storage_->writers());
  if (lease.writer_name_.empty() || found == writer_names_.end()) return;
  std::multiset<std::string>& names = found->second;
  names.erase(names.find(lease.writer_name_));
  if (names.empty()) writer_names_.erase(found);
}

std::string ExportCatalogue::who_writes(const WriterCount* storage) const {
  const std::lock_guard lock{mutex_};
  return writers_in_words(storage);
}

std::optional<std::string> ExportCatalogue::who_has(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end() || found->second.storage == nullptr) return std::nullopt;
  const WriterCount* const storage = found->second.storage->writers();
  return storage->anybody() ? writers_in_words(storage) : std::string{};
}

/// With the lock held.
std::string ExportCatalogue::writers_in_words(const WriterCount* storage) const {
  const auto found = writer_names_.find(storage);
  if (found == writer_names_.end()) return "somebody else writes to it";
  std::string names;
  for (const std::string& name : found->second) names += (names.empty() ? "" : ", ") + name;
  return names + (found->second.size() == 1 ? " writes to it" : " write to it");
}

void ExportCatalogue::give_back(const Lease& lease) {
  const std::lock_guard lock{mutex_};
  Storage& storage = *lease.storage_;
  --storage.leases_;
  if (!lease.writable()) return;
  storage.writers_->give_back(lease.writer_.has_value());
  forget_writer(lease);
  if (!lease.writer_) return;
  if (ending_) return storage.turns_->vanish(*lease.writer_);
  if (!storage.turns_->leave(*lease.writer_, lease.closed_)) return;
  if (options_.turns != nullptr && storage.turn_key_ != wire::Uuid{}) {
    left_.insert(storage.turn_key_);
  }
}

tl::expected<void, std::string> ExportCatalogue::expel(const wire::Uuid& session) {
  const std::lock_guard one_at_a_time{turn_mutex_};
  const bool kept = options_.turns != nullptr;
  if (kept) options_.turns->lock();
  std::unique_lock lock{mutex_};
  for (const auto& [identity, turns] : turns_) turns->expel(session);
  tl::expected<void, std::string> done;
  for (const auto& [key, turns] : std::map{turns_by_key_}) {
    auto each = expel_from(*turns, key, session, lock);
    if (!each) done = std::move(each);
  }
  lock.unlock();
  if (kept) options_.turns->unlock();
  return done;
}

/// `lock` is that of mutex_, and is given up meanwhile.
tl::expected<void, std::string> ExportCatalogue::expel_from(WriterTurns& turns,
                                                            const wire::Uuid& key,
                                                            const wire::Uuid& session,
                                                            std::unique_lock<std::mutex>& lock) {
  const bool kept = options_.turns != nullptr && key != wire::Uuid{};
  if (kept && !turns.anybody_there()) {  // another server may have had it meanwhile
    lock.unlock();
    auto known = options_.turns->load(key);
    lock.lock();
    if (!known) return tl::unexpected(known.error());
    if (known->origin != 0 && !turns.anybody_there()) turns.set_record(*std::move(known));
  }
  if (!turns.expel(session) || !kept) return {};
  return save(turns, key, lock);
}

bool ExportCatalogue::has_left() const {
  const std::lock_guard lock{mutex_};
  return !left_.empty();
}

void ExportCatalogue::record_left() {
  const std::lock_guard one_at_a_time{turn_mutex_};
  options_.turns->lock();
  std::unique_lock lock{mutex_};
  for (const wire::Uuid& key : std::set<wire::Uuid>{left_}) {
    if (!left_.contains(key)) continue;
    const auto saved = record_left_of(*turns_by_key_.at(key), key, lock);
    if (saved) continue;
    if (options_.log) {
      options_.log(rtrs::LogLevel::error, "cannot record who writes no more, " + saved.error() +
                                              ": it is tried again before somebody writes");
    }
  }
  lock.unlock();
  options_.turns->unlock();
}

tl::expected<void, std::string> ExportCatalogue::record_left_of(
    const WriterTurns& turns, const wire::Uuid& key, std::unique_lock<std::mutex>& lock) {
  if (turns.anybody_there()) return save(turns, key, lock);
  // Another server may have it by now.
  lock.unlock();
  const auto known = options_.turns->load(key);
  lock.lock();
  if (!known) return tl::unexpected(known.error());
  const WriterRecord& mine = turns.record();
  if (known->origin == mine.origin && known->last == mine.last) return save(turns, key, lock);
  left_.erase(key);
  return {};
}

void ExportCatalogue::end() {
  const std::lock_guard lock{mutex_};
  ending_ = true;
}

}  // namespace rnbd
