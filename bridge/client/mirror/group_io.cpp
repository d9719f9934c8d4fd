// SPDX-License-Identifier: BSD-3-Clause
// Reads, changes and flushes: when they begin, and when they have ended.
#include <algorithm>
#include <cerrno>

#include "bridge/client/mirror/group.hpp"
#include "bridge/protocol/mirror_plant.hpp"

namespace rnbd::mirror {

std::uint32_t Group::first_region(const Range& range) const {
  return static_cast<std::uint32_t>(range.begin / options_.region_sectors);
}

std::uint32_t Group::last_region(const Range& range) const {
  if (range.end <= range.begin) return first_region(range);
  return static_cast<std::uint32_t>((range.end - 1) / options_.region_sectors);
}

Range Group::range_of(std::uint32_t region) const {
  const std::uint64_t begin = region * options_.region_sectors;
  return {begin, std::min(begin + options_.region_sectors, options_.sectors)};
}

void Group::touch(const Range& range, RegionMap& map) const {
  for (auto region = first_region(range); region <= last_region(range); ++region) map.add(region);
}

bool Group::is_unequal(const Range& range, std::uint32_t& region) const {
  region = unequal_.next(first_region(range));
  return region <= last_region(range) && region < options_.regions;
}

/// A member that joins must miss nothing, and a view that is not recorded yet permits nothing.
bool Group::gate_closed() const {
  if (phase_ != Phase::live || (pending_.active && !RNBD_MIRROR_PLANTED(ack_before_view)))
    return true;
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.stage >= Stage::emptying; });
}

bool Group::may_start(const Operation& operation) const {
  if (gate_closed()) return false;
  if (cooling_step_ != Cooling::clearing || operation.kind == Kind::read) return true;
  return cooling_.next(first_region(operation.range)) > last_region(operation.range);
}

void Group::submit(Kind kind, std::uint64_t operation, Range range) {
  if (phase_ == Phase::over) return;
  operations_[operation] = {.kind = kind, .range = range, .region = first_region(range)};
  start(operation);
}

void Group::start(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  if (!may_start(operation)) {
    operation.step = Step::queued;
    queue_.push_back(id);
    return;
  }
  operation.step = Step::locking;
  // Already now: until it has its lock, a COOL may be sent that would overtake it.
  if (operation.kind != Kind::read) touch(operation.range, touched_);
  if (operation.kind == Kind::flush) return write(id);
  if (operation.kind == Kind::read) make_equal(operation.range);
  if (operation.kind == Kind::copy && RNBD_MIRROR_PLANTED(resync_no_lock)) return run(id);
  const auto mode =
      operation.kind == Kind::read ? RangeLock::Mode::shared : RangeLock::Mode::exclusive;
  if (locks_.acquire(id, operation.range, mode)) run(id);
}

/// After a read has shown the content of one member, no other content may appear.
void Group::make_equal(const Range& range) {
  if (RNBD_MIRROR_PLANTED(read_before_resync)) return;
  for (auto region = unequal_.next(first_region(range)); region <= last_region(range);
       region = unequal_.next(region + 1))
    begin_own(Kind::equal, region, 0);
}

/// It holds its range, behind the copy that made the range equal.
void Group::run(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  if (operation.kind == Kind::write) return write(id);
  std::uint32_t region = 0;
  if (operation.kind != Kind::read || !is_unequal(operation.range, region) ||
      RNBD_MIRROR_PLANTED(read_before_resync))
    return read(id);
  operation.step = Step::queued;  // until it is equal
  queue_.push_back(id);
  for (const std::uint64_t next : locks_.release(id)) run(next);
}

/// From a member in step, and again from another one when that is lost.
void Group::read(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::reading;
  MemberSet from = phase_ == Phase::attaching ? bit(mending_source_) : in_step_;
  if (RNBD_MIRROR_PLANTED(read_from_syncing) && operation.kind == Kind::read)
    from = static_cast<MemberSet>(from | syncing());
  from = static_cast<MemberSet>(from & ~operation.unreadable);
  if (from == 0) return fail(id);
  // A region that is made equal has one source as long as that lives.
  if (operation.kind == Kind::equal) from = bit(static_cast<unsigned>(std::countr_zero(from)));
  operation.source = preferred_;
  while (!has(from, operation.source)) operation.source = next_read_++ % options_.members;
  if (peers_[operation.source].stage == Stage::down) return;  // work() tries again
  const bool copies = operation.kind == Kind::copy && phase_ == Phase::live;
  if (copies && peers_[operation.target].pulls) return pull(id);
  Command order;
  command(order, operation.source, Order::read);
  order.range = operation.range;
  order.operation = id;
  post(order, {.member = operation.source, .order = Order::read, .operation = id});
  operation.sent = bit(operation.source);
}

/// Once it is read elsewhere, the member gets the region anew. If it cannot read that either, it is
/// lost.
void Group::read_failed(std::uint64_t id, unsigned member) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const RegionMap& repaired = peers_[member].repaired;
  const bool again = repaired.next(first_region(operation.range)) <= last_region(operation.range);
  if (again && repaired.regions() != 0 && size(in_step_) > 1) return lose(member, true);
  operation.unreadable = with(operation.unreadable, member);
  operation.sent = 0;
  settle(id);
  work();
}

/// No member in step can read it.
void Group::fail(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  if (operation.kind == Kind::equal) {
    // Each may have other bad sectors. One of them must be the right one.
    unsigned worst = kMaxMembers;
    for (unsigned i = 0; i < options_.members; ++i)
      if (has(in_step_, i)) worst = i;
    if (size(in_step_) > 1) return lose(worst, true);
    unequal_.remove(operation.region);
  }
  operations_.erase(id);
  host_.failed(id, EIO);
  for (const std::uint64_t next : locks_.release(id)) run(next);
  if (operation.kind == Kind::equal) start_queued();
  // It would be copied again and again.
  if (operation.kind == Kind::copy && syncs(operation.target)) lose(operation.target, true);
}

void Group::repair(const Operation& read) {
  for (auto region = first_region(read.range); region <= last_region(read.range); ++region)
    begin_own(Kind::equal, region, 0, read.unreadable);
}

/// The member reads from a member in step. Nothing passes the client.
void Group::pull(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::pulling;
  operation.source_session = peers_[operation.source].session;
  operation.sent = bit(operation.target);
  operation.acked = 0;
  Command order;
  command(order, operation.target, Order::pull);
  order.range = operation.range;
  order.operation = id;
  order.source = operation.source;
  post(order, {.member = operation.target, .order = Order::pull, .operation = id});
}

/// It counts if the source was in step all the time. If the two cannot reach each other, the client
/// copies.
void Group::pulled(std::uint64_t id, unsigned member, int error) {
  if (error == ESTALE) return lose(member, true);
  if (error != 0) peers_[member].pulls = false;
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const Peer& source = peers_[operation.source];
  const bool lasted = source.session == operation.source_session && source.stage == Stage::in_step;
  if (error == 0 && lasted) {
    operation.step = Step::writing;
    operation.acked = bit(member);
  } else {
    operation.step = Step::reading;
    operation.sent = 0;
  }
  settle(id);
  work();
}

void Group::write(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::writing;
  auto to = static_cast<MemberSet>(in_step_ | syncing());
  Order what = Order::write;
  if (operation.kind == Kind::copy) {
    to = bit(operation.target);
    // A mended member counts as in step, and no other one may have the copied data: log it.
    if (phase_ != Phase::attaching) what = Order::copy;
  }
  if (operation.kind == Kind::flush) to = in_step_, what = Order::flush;
  operation.sent = operation.acked = 0;
  if (what == Order::write) touch(operation.range, hot_);
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(to, i) || peers_[i].stage < Stage::claimed) continue;
    Command order;
    command(order, i, what);
    order.range = operation.range;
    order.operation = id;
    post(order, {.member = i, .order = what, .operation = id});
    operation.sent = with(operation.sent, i);
  }
  if (operation.sent == 0) settle(id);  // a copy for a member that is gone
}

/// Ends operations that all required members have done. While a view is recorded, nothing is read
/// or acknowledged.
void Group::settle(std::uint64_t id) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const bool attaching = phase_ == Phase::attaching;
  if (pending_.active && !RNBD_MIRROR_PLANTED(ack_before_view)) return;
  if (operation.step == Step::reading && operation.sent == 0) return read(id);
  if (operation.step == Step::pulling && operation.sent == 0) return finish(id);  // for nobody
  if (operation.step == Step::have_data)
    return operation.kind == Kind::read ? finish(id) : write(id);
  if (operation.step != Step::writing) return;
  MemberSet need = operation.kind == Kind::copy || attaching ? 0 : in_step_;
  if (RNBD_MIRROR_PLANTED(ack_before_view)) need = static_cast<MemberSet>(need & operation.sent);
  if (within(static_cast<MemberSet>(need | operation.sent), operation.acked)) finish(id);
}

void Group::settle_all() {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  for (const std::uint64_t id : ids) settle(id);
}

void Group::finish(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  operations_.erase(id);
  if (operation.kind == Kind::equal) {
    unequal_.remove(operation.region);
    for (unsigned i = 0; i < options_.members; ++i) {
      if (!has(operation.unreadable, i) || !has(in_step_, i)) continue;
      if (peers_[i].repaired.regions() == 0) peers_[i].repaired = RegionMap{options_.regions};
      peers_[i].repaired.add(operation.region);
    }
  }
  if (operation.kind == Kind::copy) {
    RegionMap& todo = phase_ == Phase::attaching ? mending_left_ : peers_[operation.target].todo;
    if (has(operation.acked, operation.target)) todo.remove(operation.region);
  }
  host_.done(id);
  for (const std::uint64_t next : locks_.release(id)) run(next);
  if (operation.kind == Kind::equal) start_queued();
  if (operation.kind == Kind::read && operation.unreadable != 0) repair(operation);
}

void Group::start_queued() {
  std::deque<std::uint64_t> queue;
  queue.swap(queue_);
  for (const std::uint64_t id : queue)
    if (operations_.contains(id)) start(id);
}

bool Group::has_own(Kind kind, std::uint32_t region, unsigned target) const {
  return std::any_of(operations_.begin(), operations_.end(), [&](const auto& entry) {
    return entry.second.kind == kind && entry.second.region == region &&
           entry.second.target == target;
  });
}

void Group::begin_own(Kind kind, std::uint32_t region, unsigned target, MemberSet unreadable) {
  if (has_own(kind, region, target)) return;
  const std::uint64_t id = next_own_++;
  operations_[id] = {.kind = kind,
                     .range = range_of(region),
                     .region = region,
                     .target = target,
                     .unreadable = unreadable};
  if (phase_ == Phase::attaching) return read(id);
  start(id);
}

bool Group::nothing_under_way() const {
  return std::all_of(operations_.begin(), operations_.end(),
                     [](const auto& entry) { return entry.second.step == Step::queued; });
}

bool Group::whole() const {
  return phase_ == Phase::live && size(in_step_) == options_.members && !pending_.active &&
         unequal_.empty() && operations_.empty() && cooling_step_ == Cooling::none;
}

}  // namespace rnbd::mirror
