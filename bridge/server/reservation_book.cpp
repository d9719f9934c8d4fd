// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/reservation_book.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rnbd {
namespace {

/// Reservations that are recorded before their sessions are answered.
constexpr std::size_t kMostTogether = 32;

/// The key of a storage's reservations in the store; zeros: they are not stored. Numbers of devices
/// are no part of it, since another boot gives others.
wire::Uuid reservation_key(const BackendInfo& info) {
  return info.outlives_server ? info.uuid : wire::Uuid{};
}

/// None: the session has no late number. Otherwise the last number before its own.
std::optional<std::uint32_t> last_before(const WriterRecord& record, const wire::Uuid& session) {
  constexpr std::uint32_t kLate = WriterReservations::kLate;
  const auto part = std::ranges::find(record.parts, session, &WriterRecord::Part::session);
  if (part == record.parts.end() || (part->number & kLate) == 0) return {};
  return (part->number & ~kLate) - 1;
}

/// The object of a storage, which stays the same when the storage is closed and opened again.
template <class T, class Files, class Keys>
std::shared_ptr<T> kept_for(Files& files, Keys& keys, const std::optional<FileIdentity>& identity,
                            const wire::Uuid& key) {
  if (!identity && key == wire::Uuid{}) return std::make_shared<T>();
  std::shared_ptr<T>& known = identity ? files[*identity] : keys[key];
  if (known == nullptr) known = std::make_shared<T>();
  return known;
}

/// Identifies the CLAIMs of a session that mean the same: of users of one device who saw the same
/// content. Zeros: a look at what was claimed then does not say what it saw.
wire::Uuid id_of_claim(std::uint64_t sight, const std::string& device) {
  if (sight == 0) return {};
  std::uint64_t name = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : device)
    name = (name ^ static_cast<std::uint8_t>(letter)) * 0x100000001b3;
  wire::Uuid id{};
  for (std::size_t i = 0; i < 8; ++i) {
    id[i] = static_cast<std::uint8_t>(sight >> 8 * i);
    id[8 + i] = static_cast<std::uint8_t>(name >> 8 * i);
  }
  return id;
}

bool is_over(const ReservationBook::Wish& wish) { return wish.given_up && wish.given_up(); }

tl::unexpected<Failure> unrecorded(std::string reason) {
  return tl::unexpected(Failure{EIO, "cannot record who writes to it: " + std::move(reason)});
}

}  // namespace

ReservationBook::ReservationBook(std::mutex& catalogue, std::shared_ptr<WriterStore> store,
                                 rtrs::Log log)
    : store_{std::move(store)}, log_{std::move(log)}, mutex_{catalogue} {}

// ---- Storage that is opened ---------------------------------------------------------------------

ReservationBook::Admission ReservationBook::admit(Backend& backend, bool read_only) {
  Admission admission;
  admission.key = reservation_key(backend.info());
  const auto notes = backend.notes();
  // Notes change without a reader's knowledge.
  const bool kept = store_ != nullptr && admission.key != wire::Uuid{} && (!read_only || !notes);
  if (!kept) return admission;
  admission.has_notes = notes != nullptr;
  if (admission.has_notes) admission.one_at_a_time = Lock{one_at_a_time_};
  if (!read_only) store_->opened(admission.key, notes);
  // An unreadable record is reported when a client wants to write.
  admission.record = store_->load(admission.key);
  admission.recorded = admission.record.has_value();
  return admission;
}

/// Reservations are found by key where there is one: another disk may get the number that this one
/// has.
void ReservationBook::attach(Storage& storage, const Admission& admission) {
  const wire::Uuid& key = admission.key;
  if (admission.has_notes) forget_users_of(key);
  storage.writers_ = kept_for<WriterCount>(writers_, writers_by_key_, storage.identity_, key);
  const bool has_key = key != wire::Uuid{};
  storage.reservations_ = kept_for<WriterReservations>(
      reservations_, reservations_by_key_, has_key ? std::nullopt : storage.identity_, key);
  if (admission.record && storage.reservations_->record().origin == 0)
    storage.reservations_->set_record(*admission.record);
  storage.reservation_key_ = key;
  storage.recorded_ = admission.recorded && !admission.has_notes;
}

/// Storage with notes is open for writing at one server only. If it was open here before, that one
/// was fenced off, and another server may have had it since. So the former users have no access and
/// no reservation any more, and have not seen the present content.
void ReservationBook::forget_users_of(const wire::Uuid& key) {
  const auto writers = writers_by_key_.find(key);
  if (writers == writers_by_key_.end()) return;
  reservations_by_key_.erase(key);
  writers->second = std::make_shared<WriterCount>(writers->second->changes() + 1);
}

int ReservationBook::take(const Storage& storage, const Access& access) {
  // The session shared the storage before the server's end, and the other one has returned first.
  const bool shared = access.again != wire::Uuid{} &&
                      storage.reservations_->takes_part(access.again) &&
                      storage.writers_->all_take_part();
  return storage.writers_->take(shared ? wire::AccessMode::migration : access.mode);
}

// ---- Reserving ----------------------------------------------------------------------------------

bool ReservationBook::rejoin(Lease& lease, const wire::Uuid& session, OpenKind open_kind) {
  if (!lease.writable()) return true;
  const std::lock_guard lock{mutex_};
  WriterReservations& reservations = *lease.storage()->reservations_;
  if (session == wire::Uuid{} || !reservations.is_there(session)) return false;
  if (open_kind == OpenKind::anew &&
      (reservations.anybody_away() || reservations.is_late(session))) {
    return false;
  }
  if (reservations.record().claim != wire::Uuid{}) return false;
  reservations.enter(session);
  lease.writer_ = session;
  if (is_kept(*lease.storage())) lease.found_ = found_by(reservations, session);
  lease.storage()->writers_->take_part();
  return true;
}

void ReservationBook::come_again(Lease& lease) {
  const std::lock_guard lock{mutex_};
  if (!lease.writer_ || !is_kept(*lease.storage())) return;
  const WriterReservations& reservations = *lease.storage()->reservations_;
  // The session came to storage without a record, and finds the same when it tries again.
  if (lease.found_ == wire::kNoWriterYet && reservations.is_late(*lease.writer_)) return;
  lease.found_ = found_by(reservations, *lease.writer_);
}

tl::expected<void, Failure> ReservationBook::reserve(Lease& lease, const wire::Uuid& session,
                                                     OpenKind open_kind) {
  Wish wish{lease, session, open_kind};
  reserve(wish);
  return wish.result;
}

void ReservationBook::announce(const std::shared_ptr<Wish>& wish) {
  const std::lock_guard lock{mutex_};
  announced_.push_back(wish);
}

void ReservationBook::withdraw(const std::shared_ptr<Wish>& wish) {
  const std::lock_guard lock{mutex_};
  std::erase(announced_, wish);
}

void ReservationBook::reserve(Wish& wish) {
  const std::lock_guard one_at_a_time{one_at_a_time_};
  if (!wish.done) reserve_together(group_of(wish));
}

/// One wish for each storage: the next one for it builds on its record. The others stay announced.
/// The call for one of them does the next part, because nobody is answered before the whole group
/// is recorded.
std::vector<ReservationBook::Wish*> ReservationBook::group_of(Wish& wish) {
  std::vector<Wish*> group{&wish};
  group.reserve(kMostTogether);
  const auto may_join = [&](const Storage& storage) {
    return is_kept(storage) && store_->saves_together(storage.reservation_key_);
  };
  const std::lock_guard lock{mutex_};
  std::set<wire::Uuid> keys{wish.lease.storage()->reservation_key_};
  const bool alone = !may_join(*wish.lease.storage());
  for (const std::shared_ptr<Wish>& each : announced_) {
    if (alone || group.size() == kMostTogether) break;
    if (each.get() == &wish || is_over(*each)) continue;
    const Storage& storage = *each->lease.storage();
    if (may_join(storage) && keys.insert(storage.reservation_key_).second)
      group.push_back(each.get());
  }
  // Nothing fails from here on: a wish is in the group, or stays announced.
  std::erase_if(announced_, [&](const std::shared_ptr<Wish>& each) {
    return is_over(*each) || std::ranges::find(group, each.get()) != group.end();
  });
  return group;
}

/// The call for a wish of the group finds it done. If this one ends by an exception, each does the
/// work itself that is not done yet.
void ReservationBook::reserve_together(const std::vector<Wish*>& group) {
  const bool kept = is_kept(*group.front()->lease.storage());
  std::unique_lock<WriterStore> store;
  if (kept) store = std::unique_lock{*store_};
  std::vector<Step> steps;
  steps.reserve(group.size());
  std::vector<Step*> recorded;
  std::unique_lock lock{mutex_};
  for (Wish* const wish : group) {
    if (is_over(*wish)) {
      wish->result = unrecorded("nobody waits for it");
      wish->done = true;
      continue;
    }
    Step& step = steps.emplace_back(*wish, kept);
    if (auto possible = judge(step, lock); !possible) {
      wish->result = std::move(possible);
      wish->done = true;
    } else if (kept && step.next) {
      recorded.push_back(&step);
    } else {
      take_part(step);
    }
  }
  save_together(recorded, lock);
}

/// Until each record is what follows from the present state. `lock` is that of mutex_, and is
/// released meanwhile.
void ReservationBook::save_together(const std::vector<Step*>& steps, Lock& lock) {
  std::vector<Step*> open = steps;
  while (!open.empty()) {
    std::vector<WriterStore::Entry> entries;
    for (const Step* const step : open) entries.push_back({*step->key, *step->next});
    lock.unlock();
    const std::vector<Saved> saved = store_->save_all(entries);
    lock.lock();
    std::vector<Step*> again;
    for (std::size_t i = 0; i < open.size(); ++i) {
      Step& step = *open[i];
      WriterRecord now = next_record(step);
      if (!saved[i]) {
        step.wish.result = unrecorded(saved[i].error());
        step.wish.done = true;
      } else if (now == *step.next) {
        take_part(step);
      } else {  // a session has left meanwhile
        step.next = std::move(now);
        again.push_back(&step);
      }
    }
    open = std::move(again);
  }
}

/// With the lock held, and with the record saved.
void ReservationBook::take_part(Step& step) {
  Wish& wish = step.wish;
  step.reservations().enter(wish.session);
  if (step.next) step.reservations().set_record(*std::move(step.next));
  wish.lease.writer_ = wish.session;
  wish.lease.found_ = step.found;
  wish.lease.storage()->writers_->take_part();
  wish.done = true;
}

WriterRecord ReservationBook::next_record(const Step& step) const {
  return step.reservations().with(step.wish.session, step.wish.kind, life_, step.claim);
}

/// With the lock held. False: they are of the storage as it was before it was opened anew, and the
/// record is not theirs any more.
bool ReservationBook::is_present(const WriterReservations& reservations,
                                 const wire::Uuid& key) const {
  const auto found = reservations_by_key_.find(key);
  return found != reservations_by_key_.end() && found->second.get() == &reservations;
}

/// Finds out what is to be recorded. `lock` is that of mutex_, and may be released meanwhile.
tl::expected<void, Failure> ReservationBook::judge(Step& step, Lock& lock) {
  WriterReservations& reservations = step.reservations();
  const wire::Uuid* const key = step.key;
  const wire::Uuid& session = step.wish.session;
  const OpenKind open_kind = step.wish.kind;
  if (key != nullptr && !is_present(reservations, *key)) {
    return unrecorded("the storage was opened anew meanwhile");
  }
  if (key != nullptr && left_.contains(*key)) {
    if (auto saved = record_left_of(reservations, *key, lock); !saved)
      return unrecorded(saved.error());
  }
  if (key != nullptr &&
      !reservations.anybody_there()) {  // another server may have had it meanwhile
    lock.unlock();
    auto known = store_->load(*key);
    lock.lock();
    if (!known) return unrecorded(known.error());
    if (known->origin != 0) reservations.set_record(*std::move(known));
  }
  const std::optional<GrantedClaim>& granted = step.wish.lease.granted();
  const bool in_time = granted && (reservations.serial_of(wire::Uuid{}) == granted->serial ||
                                   reservations.was_granted(session, granted->id));
  if (granted && granted->by_record && !in_time) {
    return tl::unexpected(Failure{ESTALE, "somebody else has come since the client looked at it"});
  }
  if (in_time) step.claim = granted->id;
  if (key != nullptr) step.found = found_by(reservations, session);
  // The session has had the storage open elsewhere, and says so: it is not recorded, and the next
  // one of its kind finds no record either.
  const bool stranger = open_kind == OpenKind::again && step.found == wire::kNoWriterYet;
  const bool has_part = reservations.takes_part(session);
  const bool anew = open_kind == OpenKind::anew;
  const bool changes_there =
      (anew && (reservations.anybody_away() || reservations.is_late(session))) ||
      reservations.record().claim != wire::Uuid{};
  if (!stranger && (reservations.is_there(session) ? changes_there : anew || !has_part))
    step.next = next_record(step);
  return {};
}

/// Saves a record for left_. `lock` is that of mutex_, and is released meanwhile.
tl::expected<void, std::string> ReservationBook::save(const WriterReservations& reservations,
                                                      const wire::Uuid& key, Lock& lock) {
  left_.erase(key);
  const WriterRecord record = reservations.record();
  lock.unlock();
  auto saved = store_->save(key, record);
  lock.lock();
  if (!saved) left_.insert(key);
  return saved;
}

std::uint64_t ReservationBook::look(const Lease& lease) const {
  return std::uint64_t{life_} << 32 | lease.storage()->writers_->look();
}

/// The last writer of an earlier run of the server is known, and not the time of its last write.
/// That writer may be this session itself, which has not heard of it: the server has ended between
/// the record of its CLAIM and the answer.
tl::expected<Lease, int> ReservationBook::claim(const Lease& lease, const wire::Claim& seen,
                                                const wire::Uuid& session,
                                                const std::string& device) {
  Storage& storage = *lease.storage();
  const std::lock_guard lock{mutex_};
  const bool looked_here = seen.sight >> 32 == life_;
  const std::uint32_t changes = looked_here ? static_cast<std::uint32_t>(seen.sight) : 0;
  const WriterReservations& reservations = *storage.reservations_;
  const GrantedClaim granted{id_of_claim(seen.sight, device), reservations.serial_of(wire::Uuid{}),
                             !looked_here};
  const bool same_writer = looked_here || seen.writer_serial == granted.serial ||
                           reservations.was_granted(session, granted.id);
  const bool changed = storage.writers_->changes() != changes || !same_writer;
  if (changed) return tl::unexpected(ESTALE);
  if (const int error = storage.writers_->take(lease.mode())) return tl::unexpected(error);
  ++storage.leases_;
  Lease claimed{lease.table_, lease.storage(), lease.geometry(), lease.mode(), false};
  claimed.granted_ = granted;
  return claimed;
}

/// The CLAIM of `seen` would have been granted in place of the other one, by the rules of claim().
/// So no change was known then that `seen` had missed.
bool ReservationBook::saw_as_much(const wire::Claim& seen, const wire::Claim& granted) const {
  if (seen.sight == 0 || seen.sight == granted.sight) return true;
  const auto is_here = [this](std::uint64_t sight) { return sight >> 32 == life_; };
  // A CLAIM from an earlier life was granted because nothing had changed in this one.
  const std::uint32_t changes =
      is_here(granted.sight) ? static_cast<std::uint32_t>(granted.sight) : 0;
  if (is_here(seen.sight)) return static_cast<std::uint32_t>(seen.sight) == changes;
  return changes == 0 && seen.writer_serial == granted.writer_serial;
}

std::uint64_t ReservationBook::writer_serial(const Lease& lease) const {
  if (lease.mode() == wire::AccessMode::read_only) return 0;
  const std::lock_guard lock{mutex_};
  const WriterReservations& reservations = *lease.storage()->reservations_;
  if (lease.unclaimed() && reservations.anybody_there()) return 0;
  return reservations.serial_of(lease.writer_.value_or(wire::Uuid{}));
}

/// With the lock held.
std::uint64_t ReservationBook::generation_of(const WriterReservations& reservations) const {
  if (reservations.record().origin != 0) return reservations.last_serial();
  return store_->knows_all() ? wire::kNoWriterYet : 0;
}

/// The generation before the session came. With the lock held.
std::uint64_t ReservationBook::found_by(const WriterReservations& reservations,
                                        const wire::Uuid& session) const {
  // The session finds the same when it tries again.
  const auto late = last_before(reservations.record(), session);
  return late ? std::uint64_t{reservations.record().origin} << 32 | *late
              : generation_of(reservations);
}

/// False: its reservations are lost with the server.
bool ReservationBook::is_kept(const Storage& storage) const {
  return store_ != nullptr && storage.reservation_key_ != wire::Uuid{};
}

/// The record of a writer's storage is up to date. Otherwise another server may have changed it
/// since it was read, if it can be reached from there.
std::uint64_t ReservationBook::generation(const Lease& lease) const {
  const std::lock_guard lock{mutex_};
  const Storage& storage = *lease.storage();
  if (!is_kept(storage)) return 0;
  const bool up_to_date = lease.writer_ || (storage.recorded_ && store_->knows_all());
  return up_to_date ? generation_of(*storage.reservations_) : 0;
}

std::uint64_t ReservationBook::found_generation(const Lease& lease) const {
  {
    const std::lock_guard lock{mutex_};
    if (lease.writer_) return lease.found_;
  }
  return generation(lease);
}

bool ReservationBook::is_alone(const Lease& lease) const {
  const std::lock_guard lock{mutex_};
  const Storage& storage = *lease.storage();
  return storage.writers_->count() == 1 && !storage.reservations_->anybody_away();
}

bool ReservationBook::was_expelled(const Lease& lease) const {
  const std::lock_guard lock{mutex_};
  return lease.writer_ && lease.storage()->reservations_->was_expelled(*lease.writer_);
}

void ReservationBook::name_writer(Lease& lease, const std::string& who) {
  if (!lease.writable()) return;
  const std::lock_guard lock{mutex_};
  forget_writer(lease);
  lease.writer_name_ = who;
  writer_names_[lease.storage()->writers()].insert(who);
}

/// With the lock held.
void ReservationBook::forget_writer(const Lease& lease) {
  const auto found = writer_names_.find(lease.storage_->writers());
  if (lease.writer_name_.empty() || found == writer_names_.end()) return;
  std::multiset<std::string>& names = found->second;
  names.erase(names.find(lease.writer_name_));
  if (names.empty()) writer_names_.erase(found);
}

std::string ReservationBook::who_writes(const WriterCount* storage) const {
  const std::lock_guard lock{mutex_};
  return in_words(storage);
}

std::string ReservationBook::in_words(const WriterCount* storage) const {
  const auto found = writer_names_.find(storage);
  if (found == writer_names_.end()) return "somebody else writes to it";
  std::string names;
  for (const std::string& name : found->second) names += (names.empty() ? "" : ", ") + name;
  return names + (found->second.size() == 1 ? " writes to it" : " write to it");
}

void ReservationBook::leave(const Lease& lease) {
  const Storage& storage = *lease.storage_;
  storage.writers_->give_back(lease.writer_.has_value());
  forget_writer(lease);
  if (!lease.writer_) return;
  if (ending_) return storage.reservations_->vanish(*lease.writer_);
  if (!storage.reservations_->leave(*lease.writer_, lease.closed_)) return;
  if (store_ != nullptr && storage.reservation_key_ != wire::Uuid{}) {
    left_.insert(storage.reservation_key_);
  }
}

tl::expected<void, std::string> ReservationBook::expel(const wire::Uuid& session) {
  const std::lock_guard one_at_a_time{one_at_a_time_};
  std::unique_lock<WriterStore> store;
  if (store_ != nullptr) store = std::unique_lock{*store_};
  std::unique_lock lock{mutex_};
  for (const auto& [identity, reservations] : reservations_) reservations->expel(session);
  tl::expected<void, std::string> done;
  for (const auto& [key, reservations] : std::map{reservations_by_key_}) {
    auto each = expel_from(*reservations, key, session, lock);
    if (!each) done = std::move(each);
  }
  return done;
}

/// `lock` holds mutex_, and is released meanwhile.
tl::expected<void, std::string> ReservationBook::expel_from(WriterReservations& reservations,
                                                            const wire::Uuid& key,
                                                            const wire::Uuid& session, Lock& lock) {
  const bool kept = store_ != nullptr && key != wire::Uuid{};
  if (kept && !reservations.anybody_there()) {  // another server may have had it meanwhile
    lock.unlock();
    auto known = store_->load(key);
    lock.lock();
    if (!known) return tl::unexpected(known.error());
    if (known->origin != 0 && !reservations.anybody_there())
      reservations.set_record(*std::move(known));
  }
  if (!reservations.expel(session) || !kept) return {};
  return save(reservations, key, lock);
}

bool ReservationBook::has_left() const {
  const std::lock_guard lock{mutex_};
  return !left_.empty();
}

/// All records together. One that changes meanwhile stays for the next time.
void ReservationBook::record_left() {
  const std::lock_guard one_at_a_time{one_at_a_time_};
  const std::unique_lock store{*store_};
  std::unique_lock lock{mutex_};
  std::vector<WriterStore::Entry> entries;
  for (const wire::Uuid& key : std::set<wire::Uuid>{left_}) {
    if (!left_.contains(key)) continue;
    const WriterReservations& reservations = *reservations_by_key_.at(key);
    const auto left = is_left(reservations, key, lock);
    if (!left) {
      complain_of_left(left.error());
    } else if (*left) {
      entries.push_back({key, reservations.record()});
    } else {
      left_.erase(key);
    }
  }
  lock.unlock();
  const std::vector<Saved> saved = store_->save_all(entries);
  lock.lock();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto known = reservations_by_key_.find(entries[i].storage);
    if (!saved[i])
      complain_of_left(saved[i].error());
    else if (known == reservations_by_key_.end() || known->second->record() == entries[i].record)
      left_.erase(entries[i].storage);
  }
}

void ReservationBook::complain_of_left(const std::string& reason) const {
  if (!log_) return;
  log_(rtrs::LogLevel::error, "cannot record who writes no more, " + reason +
                                  ": it is tried again before somebody writes");
}

ReservationBook::Saved ReservationBook::record_left_of(const WriterReservations& reservations,
                                                       const wire::Uuid& key, Lock& lock) {
  const auto left = is_left(reservations, key, lock);
  if (!left) return tl::unexpected(left.error());
  if (*left) return save(reservations, key, lock);
  left_.erase(key);
  return {};
}

/// False: another server has had the storage since, and its record is newer. `lock` is that of
/// mutex_, and may be released meanwhile.
tl::expected<bool, std::string> ReservationBook::is_left(const WriterReservations& reservations,
                                                         const wire::Uuid& key, Lock& lock) {
  if (reservations.anybody_there()) return true;
  lock.unlock();
  const auto known = store_->load(key);
  lock.lock();
  if (!known) return tl::unexpected(known.error());
  const WriterRecord& mine = reservations.record();
  return known->origin == mine.origin && known->last == mine.last;
}

void ReservationBook::end() {
  const std::lock_guard lock{mutex_};
  ending_ = true;
}

}  // namespace rnbd
