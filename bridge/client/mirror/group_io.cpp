// SPDX-License-Identifier: BSD-3-Clause
// Reads, changes and flushes: when they begin, and when they have ended.
#include <algorithm>
#include <cerrno>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

bool Group::may_start(const Operation& operation) const {
  if (members_.gate_closed()) return false;
  return only_reads(operation.kind) || !activity_.is_leaving(operation.range);
}

void Group::submit(Kind kind, std::uint64_t operation, Range range) {
  if (is_over()) return;
  operations_.add(operation) = {.kind = kind,
                                .range = range,
                                .region = regions_.first(range),
                                .first_tag = members_.sent().next_tag()};
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
  if (!only_reads(operation.kind)) activity_.touch(operation.range);
  if (operation.kind == Kind::flush) return write(id);
  if (shows(operation.kind)) make_equal(operation.range);
  const auto mode =
      only_reads(operation.kind) ? RangeLock::Mode::shared : RangeLock::Mode::exclusive;
  if (locks_.acquire(id, operation.range, mode)) run(id);
}

/// After a read has shown the content of one member, no other content may appear.
void Group::make_equal(const Range& range) {
  for (auto region = unequal_.next(regions_.first(range)); region <= regions_.last(range);
       region = unequal_.next(region + 1))
    begin_own(Kind::equal, region, 0);
}

/// It holds its range, behind the copy that made the range equal.
void Group::run(std::uint64_t id) {
  if (is_over()) return;  // one that was granted with it has ended the group
  Operation& operation = operations_.at(id);
  if (operation.clears) return ask(id);
  if (operation.kind == Kind::write || operation.kind == Kind::zero) return write(id);
  if (!shows(operation.kind) || !regions_.meets(operation.range, unequal_)) return read(id);
  operation.step = Step::queued;  // until it is equal
  queue_.push_back(id);
  for (const std::uint64_t next : locks_.release(id)) run(next);
}

/// From a member in step, and again from another one when that is lost. A region that is made equal
/// is read from all of them, as most of it is the same.
void Group::read(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  const bool attaching = members_.phase() == Phase::attaching;
  operation.step = Step::reading;
  operation.sent = operation.acked = 0;
  MemberSet from = attaching ? bit(mending_.source) : copies();
  from = static_cast<MemberSet>(from & ~operation.unreadable);
  if (from == 0) return fail(id);
  if (operation.kind == Kind::equal || operation.kind == Kind::verify) {
    for (unsigned i = 0; i < options_.members; ++i)
      if (has(from, i)) read_from(i, id);
    return;
  }
  operation.source = preferred_;
  while (!has(from, operation.source)) operation.source = next_read_++ % options_.members;
  const bool copies = operation.kind == Kind::copy && live();
  const bool is_there = members_[operation.source].stage != Stage::down;
  if (is_there && copies && members_[operation.target].pulls) return pull(id);
  read_from(operation.source, id);
}

/// If it is lost, its view is not recorded yet, and then the operation is read anew.
void Group::read_from(unsigned member, std::uint64_t id) {
  if (members_[member].stage == Stage::down) return;
  Operation& operation = operations_.at(id);
  operation.sent = with(operation.sent, member);
  const Order what = operation.kind == Kind::extents ? Order::extents : Order::read;
  members_.post(member, what, {.operation = id}, {.range = operation.range, .operation = id});
}

/// Once it is read elsewhere, the member gets the region anew. If it cannot read that either, it is
/// lost.
void Group::read_failed(std::uint64_t id, unsigned member) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const bool again = regions_.meets(operation.range, members_[member].repaired);
  if (again && size(copies()) > 1) return lose(member, true);
  operation.unreadable = with(operation.unreadable, member);
  operation.sent = without(operation.sent, member);
  settle(id);
  work();
}

/// No member in step can read it.
void Group::fail(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  if (operation.kind == Kind::verify) return compared(id);
  if (operation.repairs) return give_up(id);
  if (operation.kind == Kind::equal) {
    // Each may have other bad sectors. One of them must be the right one.
    unsigned worst = kMaxMembers;
    for (unsigned i = 0; i < options_.members; ++i)
      if (has(copies(), i)) worst = i;
    if (size(copies()) > 1) return lose(worst, true);
    unequal_.remove(operation.region);
  }
  // The others are copied first.
  if (operation.kind == Kind::copy) {
    members_[operation.target].next_copy = operation.region + 1;
    members_[operation.target].passages.erase(operation.region);
  }
  end_failed(id, EIO);
  if (operation.kind == Kind::equal) start_queued();
}

void Group::end_failed(std::uint64_t id, int error) {
  operations_.erase(id);
  host_.failed(id, error);
  for (const std::uint64_t next : locks_.release(id)) run(next);
}

/// If all members in step answer alike, the fault is not theirs. Then none of them is lost: their
/// disks may all be full.
void Group::refused(std::uint64_t id, unsigned member, int error) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return lose(member, true);
  Operation& operation = found->second;
  if (operation.refused != 0 && operation.error != error) return lose(member, true);
  operation.refused = with(operation.refused, member);
  operation.error = error;
  settle(id);
  work();
}

/// Others have carried out what some have refused, which are lost unless the group needs them. To
/// make members equal, the data of one that refused are tried before, because they may need less
/// room. A repair that an operator wants costs no member its place.
void Group::outvoted(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  const auto refusing = static_cast<MemberSet>(operation.refused & copies());
  const bool turns = operation.kind == Kind::equal && refusing != 0 && !operation.turned;
  if (turns || operation.repairs || !can_spare(operation.refused)) {
    const auto answered = static_cast<MemberSet>(operation.acked | operation.refused);
    if (!within(static_cast<MemberSet>(operation.sent | copies()), answered)) return;
    if (!turns) return refuse(id);
    operation.turned = true;
    operation.source = static_cast<unsigned>(std::countr_zero(refusing));
    return read(id);
  }
  const MemberSet lost = operation.refused;
  for (unsigned i = 0; i < options_.members; ++i)
    if (has(lost, i)) lose(i, true);
}

/// All members in step have refused it, or those that the group needs. Each may have carried out
/// another part of it, and so may those that come back.
void Group::refuse(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  if (!operation.repairs) regions_.add(operation.range, unequal_);
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!members_.syncs(i)) continue;
    regions_.add(operation.range, members_[i].todo);
    RegionMap whole{regions_.count()};
    regions_.add(operation.range, whole);
    missed_.add_whole(i, whole);
    for (auto region = regions_.first(operation.range); region <= regions_.last(operation.range);
         ++region)
      members_[i].passages.erase(region);
  }
  operation.repairs ? give_up(id) : end_failed(id, operation.error);
}

void Group::repair(const Operation& read) {
  for (auto region = regions_.first(read.range); region <= regions_.last(read.range); ++region)
    begin_own(Kind::equal, region, 0, read.unreadable);
}

/// The member reads from a member in step, which it knows by the disk. Nothing passes the client.
void Group::pull(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::pulling;
  operation.source_session = members_[operation.source].session;
  operation.sent = bit(operation.target);
  operation.acked = 0;
  members_.post(operation.target, Order::pull, {.operation = id},
                {.range = operation.range,
                 .operation = id,
                 .source = operation.source,
                 .disk = members_[operation.source].claimed.disk});
}

/// It counts if the source was in step all the time. If the two cannot reach each other, the client
/// copies.
void Group::pulled(std::uint64_t id, unsigned member, int error) {
  if (error == ESTALE) return lose(member, true);
  if (error != 0) members_[member].pulls = false;
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const Membership::Member& source = members_[operation.source];
  const bool lasted = source.session == operation.source_session &&
                      source.stage == Stage::in_step && !is_claimed_anew(bit(operation.source));
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
  auto to = static_cast<MemberSet>(copies() | members_.syncing());
  Order what = operation.kind == Kind::zero ? Order::zero : Order::write;
  if (operation.kind == Kind::copy) {
    // Another disk may have come in its place since, which is not taken in yet.
    to = live() ? static_cast<MemberSet>(bit(operation.target) & members_.syncing())
                : bit(operation.target);
    // A mended member counts as in step, and no other one may have the copied data: log it.
    if (members_.phase() != Phase::attaching) what = Order::copy;
  }
  if (operation.kind == Kind::flush) to = copies(), what = Order::flush;
  MemberSet same = 0;
  if (operation.kind == Kind::equal) {
    if (!has(operation.acked, operation.source))
      operation.source = static_cast<unsigned>(std::countr_zero(operation.acked));
    same = host_.same(id, operation.acked, operation.source);
    to = static_cast<MemberSet>(to & ~same);
  }
  operation.acked = same;
  operation.sent = operation.refused = 0;
  const bool logged = what == Order::write || what == Order::zero;
  if (logged) activity_.log(operation.range);
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(to, i) || members_[i].stage < Stage::claimed) continue;
    if (logged && members_.syncs(i)) regions_.add(operation.range, members_[i].logged);
    members_.post(i, what, {.operation = id},
                  {.range = operation.range, .operation = id, .source = operation.source});
    operation.sent = with(operation.sent, i);
  }
  if (logged) missed_.changed(static_cast<MemberSet>(~(operation.sent | same)), operation.range);
  if (operation.sent == 0) settle(id);  // all are the same, or a member is gone
}

/// The others may have zeroed it, so the user is not told that this one cannot do so in that way.
void Group::zero_by_writing(std::uint64_t id, unsigned member) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  members_.post(member, Order::write, {.operation = id},
                {.range = found->second.range, .operation = id});
}

/// Ends operations that all required members have done. While a view is recorded, nothing is read
/// or acknowledged.
void Group::settle(std::uint64_t id) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  const bool attaching = members_.phase() == Phase::attaching;
  if (members_.proposes()) return;
  if (operation.step == Step::asking && operation.sent == 0) return give_up(id);
  if (operation.step == Step::reading && operation.sent == 0) return read(id);
  if (operation.step == Step::pulling && operation.sent == 0) return finish(id);  // for nobody
  if (operation.step == Step::reading) {
    if (!within(operation.sent, operation.acked) || is_claimed_anew(operation.acked)) return;
    if (operation.kind == Kind::verify) return compared(id);
    const auto shown = static_cast<MemberSet>(operation.acked & copies());
    if (operation.repairs && !has(shown, operation.source)) return give_up(id);
    if (!shows(operation.kind)) return write(id);
    if (has_lease(operation)) finish(id);
    return;
  }
  if (operation.step != Step::writing) return;
  if (operation.refused != 0 && (operation.acked & copies()) != 0) return outvoted(id);
  const MemberSet need = operation.kind == Kind::copy || attaching ? 0 : copies();
  const auto answered = static_cast<MemberSet>(operation.acked | operation.refused);
  if (!within(static_cast<MemberSet>(need | operation.sent), answered)) return;
  operation.refused != 0 ? refuse(id) : finish(id);
}

/// The server of a member that is claimed anew may have been started anew, and lack what it had.
/// Until that claim is granted, nothing counts that was read there.
bool Group::is_claimed_anew(MemberSet members) {
  for (unsigned i = 0; i < options_.members && live(); ++i)
    if (has(members, i) && members_[i].claimed.promised != term()) return true;
  return false;
}

/// Members that have carried out an order with this tag or a newer one.
MemberSet Group::served_since(std::uint64_t tag) {
  MemberSet served = 0;
  for (unsigned i = 0; i < options_.members; ++i)
    if (members_[i].served_tag >= tag) served = with(served, i);
  return served;
}

/// Without it, another client may have written before the read was submitted. An order that is sent
/// later and carried out shows that none has, however long the answer takes. Members without a
/// lease that have carried out none are asked. The read waits until they answer, or are lost: in
/// either case all that are left in step serve this client. One that is claimed anew may have
/// served another one.
bool Group::has_lease(const Operation& read) {
  const auto shown = static_cast<MemberSet>(host_.leased() | served_since(read.first_tag));
  const auto silent = static_cast<MemberSet>(copies() & ~shown);
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(silent, i) || has(echoing_, i)) continue;
    echoing_ = with(echoing_, i);
    members_.post(i, Order::echo, {});
  }
  return silent == 0 && !is_claimed_anew(copies());
}

void Group::settle_all() {
  for (const std::uint64_t id : operations_.numbers()) settle(id);
}

void Group::finish(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  operations_.erase(id);
  if (operation.kind == Kind::equal) {
    if (operation.repairs)
      ++verification_.repaired;
    else
      unequal_.remove(operation.region);
    for (unsigned i = 0; i < options_.members; ++i) {
      if (!has(operation.unreadable, i) || !has(copies(), i)) continue;
      if (members_[i].repaired.regions() == 0) members_[i].repaired = RegionMap{regions_.count()};
      members_[i].repaired.add(operation.region);
    }
  }
  if (operation.kind == Kind::copy) copied(operation);
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

void Group::begin_own(Kind kind, std::uint32_t region, unsigned target, MemberSet unreadable) {
  if (operations_.has_own(kind, region, target)) return;
  begin_own({.kind = kind,
             .range = regions_.range_of(region),
             .region = region,
             .target = target,
             .unreadable = unreadable});
}

std::uint64_t Group::begin_own(const Operation& operation) {
  const std::uint64_t id = operations_.next_own();
  operations_.add(id) = operation;
  members_.phase() == Phase::attaching ? read(id) : start(id);
  return id;
}

bool Group::whole() const {
  const unsigned all = options_.members + (options_.vote ? 1 : 0);
  return live() && size(in_step()) == all && !members_.proposes() && !members_.grows() &&
         unequal_.empty() && operations_.empty() && activity_.idle();
}

}  // namespace rnbd::mirror
