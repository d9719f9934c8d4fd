// SPDX-License-Identifier: BSD-3-Clause
// Members of a mirror, their answers, and how a group attaches.
#include "bridge/client/mirror/group.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace rnbd::mirror {

Group::Group(const GroupOptions& options, GroupHost& host)
    : options_{options},
      host_{host},
      regions_{options.region_sectors, sectors_of(options.size)},
      members_{options, regions_, host},
      unequal_{regions_.count()},
      activity_{regions_},
      missed_{regions_, options.members} {}

void Group::link_up(unsigned member, bool overwrite) {
  if (is_over()) return;
  const bool waits = dissolving_.active() || members_.grows();
  waits ? host_.drop(member) : members_.link_up(member, overwrite);
}

void Group::link_down(unsigned member) {
  if (!is_over() && members_[member].stage != Stage::down) lose(member, false);
}

/// Its session is over: nothing of it counts any more.
void Group::lose(unsigned member, bool drop) {
  const bool was_claimed = members_[member].stage == Stage::claimed;
  const bool was_joining = members_[member].stage >= Stage::emptying;
  if (live() && member != members_.vote()) note_missed(member);
  members_.forget(member);
  operations_.forget(member);
  echoing_ = without(echoing_, member);
  asking_ = without(asking_, member);
  // A view takes it back, as it is without this member. It is tried again once that is back.
  const bool has_grown = members_.grows() && has(in_step(), member);
  if (has_grown) members_.end_growth();
  const bool has_cooled = has(in_step(), member) && activity_.lost(member);
  if (drop) host_.drop(member);
  if (members_.phase() == Phase::attaching) {
    if (was_claimed) restart();
    return;
  }
  const MemberSet base = members_.base();
  if (dissolving_.member == member) end_dissolve(dissolving_.asked ? EIO : ECANCELED);
  if (has(base, member)) propose(without(base, member), {});
  if (is_over()) return;
  settle_all();
  if (was_joining || has_cooled || has_grown) start_queued();
  work();
}

/// It misses all that is sent from now on. The outcome of changes that it was sent is not known.
void Group::note_missed(unsigned member) {
  if (members_[member].stage == Stage::in_step)
    missed_.begin(member, activity_.hot());
  else if (members_.syncs(member))
    missed_.add_whole(member, members_[member].logged);
}

void Group::answer(const Answer& answer) {
  if (is_over()) return;
  const auto sent = members_.sent().answered(answer.tag);
  if (!sent) return;
  if (sent->order == Order::claim) return claimed(sent->member, answer);
  if (sent->order == Order::room) return told_room(sent->member, answer);
  if (sent->order == Order::grow) return grown(*sent, answer);
  if (sent->order == Order::inspect) return inspected(sent->member, answer.error);
  if (sent->order == Order::pull) return pulled(sent->operation, sent->member, answer.error);
  if (sent->order == Order::extents && sent->operation >= kOwn)
    return told(sent->operation, sent->member, answer);
  if (sent->order == Order::dissolve && answer.error == 0) return end_dissolve(0);
  if (sent->order == Order::clear) return cleared(sent->operation, sent->member, answer.error);
  const bool shows = sent->order == Order::read || sent->order == Order::extents;
  const bool unreadable = answer.error == EIO && shows;
  if (unreadable && live()) return read_failed(sent->operation, sent->member);
  const bool refuses = answer.error != 0 && answer.error != EIO && answer.error != ESTALE;
  if (answer.error == EOPNOTSUPP && sent->order == Order::zero)
    return zero_by_writing(sent->operation, sent->member);
  if (refuses && (sent->order == Order::write || sent->order == Order::zero) && live())
    return refused(sent->operation, sent->member, answer.error);
  const bool unknown = lacks_hint(sent->order, answer.error);
  if (answer.error != 0 && !unknown) return lose(sent->member, true);
  std::uint64_t& served = members_[sent->member].served_tag;
  if (!unknown) served = std::max(served, answer.tag);
  const auto operation = operations_.find(sent->operation);
  switch (sent->order) {
    case Order::view:
      if (sent->about == kMaxMembers) return begin_resync(sent->member);
      if (!members_.recorded(sent->member, sent->view)) return;
      for (unsigned i = 0; i < options_.members; ++i)
        if (has(in_step(), i)) missed_.forget(i);
      settle_all();
      start_queued();
      return work();
    case Order::echo:
      echoing_ = without(echoing_, sent->member);
      return settle_all();
    case Order::maps:
      if (members_.learn(sent->about, sent->member, answer.maps)) work();
      return;
    case Order::confirm:
      return dissolving_.active() ? work() : void();
    case Order::beat:
      return counted(sent->member, sent->beat);
    case Order::cool:
      if (activity_.cleared(sent->member)) cooled();
      return;
    case Order::flush:
      if (operation == operations_.end()) {
        if (sent->beat != 0) return flushed_for_cooling(sent->member, sent->beat);
        if (members_.phase() == Phase::attaching) {
          members_[sent->member].claimed.lost_power = false;
          mending_.member = kMaxMembers;
          return try_attach(true);
        }
        return flushed_joiner(sent->member);
      }
      [[fallthrough]];
    case Order::write:
    case Order::zero:
    case Order::copy:
    case Order::read:
    case Order::extents:
      if (operation == operations_.end()) return;
      operation->second.acked = with(operation->second.acked, sent->member);
      break;
    default:
      return;
  }
  settle(sent->operation);
  // Copies wait for copies, and members that come back wait for the operations of users, too.
  if (sent->operation >= kOwn || members_.syncing() != 0 || members_.grows()) work();
}

void Group::claimed(unsigned number, const Answer& answer) {
  const bool refused = answer.error == ESTALE;
  if (refused && members_.superseded_by(answer.claimed.promised)) return supersede();
  if (members_[number].stage == Stage::in_step) return claimed_anew(number, answer);
  const bool attaching = members_.phase() == Phase::attaching;
  if (answer.error != 0) {
    if (!refused) return lose(number, true);
    members_.outranked(number, answer.claimed.promised);
    return attaching ? restart() : work();
  }
  // It was claimed before the group knew its size.
  const std::uint64_t size = answer.claimed.size;
  if (live() && size != 0 && size < disk_size()) return lose(number, true);
  members_.claimed(number, answer.claimed);
  if (!members_.inspect(number)) take_in(number);
}

void Group::claimed_anew(unsigned number, const Answer& answer) {
  if (answer.error != 0 || !members_.granted(number, answer.claimed)) return lose(number, true);
  settle_all();
  work();
}

void Group::inspected(unsigned number, int error) {
  if (error != 0 && error != ENOTEMPTY) return lose(number, true);
  members_[number].writable = error == 0;
  take_in(number);
}

/// The member takes part in attaching, or its resync begins.
void Group::take_in(unsigned number) {
  Membership::Member& member = members_[number];
  member.stage = Stage::claimed;
  members_.claim_vote();
  // Two clients that lack each other's disks take the vote from each other. So no time is lost once
  // it is granted.
  const bool may_lose_vote = options_.vote && hurried_ && !members_.claims();
  if (members_.phase() == Phase::attaching) return try_attach(may_lose_vote);
  if (number == members_.vote()) return work();
  if (members_.holds_data(number) || members_.displaced(number)) return;
  if (member.claimed.view.id == ViewId{}) return members_.introduce(number);
  begin_resync(number);
}

void Group::begin_resync(unsigned number) {
  Membership::Member& member = members_[number];
  member.stage = Stage::draining;  // from now on it is told of all changes
  member.todo = RegionMap{regions_.count()};
  if (members_.lacks_all(number)) {
    member.todo.add_all();
    missed_.forget(number);
  }
  // If an operator has forced this member to go on alone, the others lack its later changes.
  for (unsigned k = 0; k < options_.members; ++k)
    if (has(in_step(), k)) member.todo.add(member.claimed.maps.dirty[k]);
  missed_.add_whole(number, member.todo);
  member.pulls = member.claimed.pulls;
  member.logged = RegionMap{regions_.count()};
  member.logged.add(member.claimed.maps.active);
  for (const auto& [id, operation] : operations_)
    if (operation.step == Step::writing) member.older.push_back(id);
  work();
}

/// A vote lacks nothing, so a view is all that it takes. None comes between the counts of others.
void Group::let_vote() {
  const unsigned vote = members_.vote();
  const bool is_due = members_[vote].stage == Stage::claimed && !dissolving_.active();
  if (is_due && !members_.gate_closed() && activity_.idle()) propose(with(in_step(), vote), {});
}

void Group::restart() {
  mending_.member = kMaxMembers;
  for (const std::uint64_t id : operations_.erase_own()) locks_.release(id), host_.done(id);
  members_.restart();
}

void Group::hurry() {
  hurried_ = true;
  if (members_.phase() == Phase::attaching) try_attach(true);
}

void Group::try_attach(bool hurry) {
  if (members_.proposes() || mending_.active()) return;
  const auto found = members_.attachment(hurry);
  if (!found) return;
  resize(found->size);
  unequal_ = found->unequal;
  activity_.add(found->active);
  if (found->good == 0) return;
  if (found->enough) {
    members_.begin_views();
    return propose(found->good, found->inherit);
  }
  const auto mended = static_cast<MemberSet>(found->candidates & ~found->good);
  if (mended == 0) return;
  mending_.member = static_cast<unsigned>(std::countr_zero(mended));
  mending_.source = static_cast<unsigned>(std::countr_zero(found->good));
  mending_.left = RegionMap{regions_.count()};
  mending_.left.add(members_[mending_.member].claimed.maps.active);
  mending_.left.add(members_[mending_.source].claimed.maps.active);
  work();
}

bool Group::force(unsigned member) {
  const bool idle = !members_.proposes() && !mending_.active();
  if (members_.phase() != Phase::attaching || !idle || members_[member].stage != Stage::claimed)
    return false;
  if (members_[member].claimed.view.id == ViewId{} || member == members_.vote()) return false;
  members_.begin_history();
  if (members_[member].claimed.size != 0) resize(members_[member].claimed.size);
  unequal_.clear();
  activity_.add(members_[member].claimed.maps.active);
  std::vector<RegionMap> inherit(options_.members, RegionMap{regions_.count()});
  for (unsigned k = 0; k < options_.members; ++k)
    if (k != member) inherit[k].add_all();
  propose(bit(member), inherit);
  return true;
}

bool Group::discard(unsigned member) {
  if (is_over() || members_[member].stage == Stage::down) return true;
  const MemberSet base = disks_of(members_.base(), options_.members);
  if (live() && (copies() == bit(member) || base == bit(member))) return false;
  // A view that is being recorded may be all that lets the vote and a disk go on without one more.
  // Of disks alone, another one may be back, and go on with those that are left.
  const bool may_wait = options_.vote && live() && members_.proposes();
  if (may_wait && !can_spare(bit(member))) return false;
  if (live() && has(in_step(), member) && !members_.proposes()) members_.exclude(bit(member));
  lose(member, true);
  return true;
}

bool Group::can_spare(MemberSet members) const {
  const MemberSet base = members_.base();
  if (!live() || (base & members) == 0) return live();
  const auto others = static_cast<MemberSet>(base & ~members);
  return are_enough(others, in_step(), options_.members, options_.degraded);
}

void Group::propose(MemberSet set, const std::vector<RegionMap>& inherit) {
  if (members_.propose(set, inherit)) return;
  members_.end();
  operations_.clear();
  host_.over();
}

void Group::supersede() {
  members_.end();
  operations_.clear();
  host_.superseded();
}

}  // namespace rnbd::mirror
