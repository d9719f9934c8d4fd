// SPDX-License-Identifier: BSD-3-Clause
// Sessions with members, and how one view follows another.
#include "bridge/client/mirror/membership.hpp"

#include <algorithm>
#include <utility>

namespace rnbd::mirror {

Membership::Membership(const GroupOptions& options, const Regions& regions, GroupHost& host)
    : options_{options},
      regions_{regions},
      host_{host},
      sent_{host},
      size_{options.size},
      pedigree_(options.members + 1),
      members_(options.members + 1),
      next_session_{options.first_session} {}

MemberSet Membership::syncing() const {
  MemberSet set = 0;
  for (unsigned i = 0; i < options_.members; ++i)
    if (syncs(i)) set = with(set, i);
  return set;
}

Membership::Progress Membership::progress(unsigned number) const {
  const Member& member = members_[number];
  if (member.stage == Stage::down) return {};
  if (member.stage == Stage::in_step) return {Standing::in_step, 0};
  if (member.stage < Stage::in_step) return {Standing::waiting, 0};
  return {Standing::resync, member.todo.count()};
}

Membership::Record Membership::record(unsigned number) const {
  const Member& member = members_[number];
  Record known{.view = member.claimed.view.id, .promised = member.claimed.promised};
  if (member.stage == Stage::in_step) known.view = confirmed_.id;
  if (phase_ != Phase::attaching || member.stage != Stage::claimed) return known;
  ViewId newest{};
  for (unsigned i = 0; i < voters(); ++i)
    if (members_[i].stage == Stage::claimed) newest = std::max(newest, told_view(i).id);
  if (newest == ViewId{}) return known;
  known.told = true;
  known.blank = known.view == ViewId{};
  known.displaced = displaced(number);
  known.set_back = is_set_back(number);
  known.older = told_view(number).id < newest;
  known.set = told_view(number).set;
  return known;
}

bool Membership::gate_closed() const {
  if (phase_ != Phase::live || pending_.active || grows()) return true;
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.stage >= Stage::emptying; });
}

// ---- Sessions and commands ----------------------------------------------------------------------

void Membership::link_up(unsigned number, bool overwrite) {
  Member& member = members_[number];
  member.session = next_session_++;
  member.writable = overwrite;
  member.stage = Stage::up;
  if (rise_) return;
  number == vote() ? claim_vote() : claim(number);
}

void Membership::claim_vote() {
  if (members_[vote()].stage != Stage::up) return;
  unsigned claimed = 0;
  for (unsigned i = 0; i < options_.members; ++i)
    claimed += members_[i].stage >= Stage::claimed ? 1 : 0;
  // While only blank disks are there, another one may know the mirror that the vote is of.
  if (claimed == options_.members || (claimed != 0 && !known_disks().empty())) claim(vote());
}

/// A vote has no maps.
void Membership::claimed(unsigned number, const Claimed& answer) {
  Member& member = members_[number];
  member.claimed = answer;
  if (number != vote()) return;
  const RegionMap none{regions_.count()};
  member.claimed.maps = {.active = none, .dirty{options_.members, none}};
}

/// The record of a vote may be that of another mirror, with the same servers' names or the same
/// UUID in its URI. It is the right one if it knows one of these.
std::vector<std::uint64_t> Membership::known_disks() const {
  std::vector<std::uint64_t> disks;
  for (unsigned k = 0; k < options_.members; ++k) {
    const Claimed& claimed = members_[k].claimed;
    const bool was_member = members_[k].stage >= Stage::claimed && claimed.view.id != ViewId{};
    std::uint64_t disk = was_member ? claimed.disk : pedigree_[k].disk;
    for (unsigned i = 0; i < options_.members && disk == 0; ++i)
      if (k < members_[i].claimed.pedigree.size()) disk = members_[i].claimed.pedigree[k].disk;
    if (disk != 0) disks.push_back(disk);
  }
  return disks;
}

/// While the group attaches, nobody knows yet how large its disk is. No record says less than that.
/// A vote has no size.
void Membership::post_claim(unsigned member) {
  Command order;
  if (member == vote())
    order.disks = known_disks();
  else
    order.size = order.base = phase_ == Phase::attaching ? options_.size : size_;
  post(member, Order::claim, {}, std::move(order));
}

void Membership::claim(unsigned member) {
  members_[member].stage = Stage::claiming;
  post_claim(member);
}

void Membership::outranked(unsigned number, std::uint64_t promised) {
  Member& member = members_[number];
  member.stage = Stage::up;
  member.claimed.promised = promised;
  if (phase_ != Phase::attaching) rise_ = true;
}

void Membership::forget(unsigned member) {
  members_[member] = Member{};
  sent_.forget(member);
}

bool Membership::inspect(unsigned number) {
  Member& member = members_[number];
  const bool has_content = number == 0 && phase_ == Phase::attaching;
  if (number == vote() || !holds_data(number) || has_content) return false;
  member.stage = Stage::inspecting;
  post(number, Order::inspect, {});
  return true;
}

bool Membership::holds_data(unsigned number) const {
  const Member& member = members_[number];
  return member.claimed.view.id == ViewId{} && !member.writable;
}

void Membership::post(unsigned member, Order order, SentCommand about, Command command) {
  command.member = about.member = member;
  command.order = about.order = order;
  command.session = members_[member].session;
  command.term = term_;
  sent_.post(command, about);
}

void Membership::introduce(unsigned member) {
  members_[member].claimed.view = confirmed_;  // as its record says from then on
  Command order;
  order.view = order.confirmed = confirmed_;
  order.pedigree = pedigree_;
  order.size = size_;
  post(member, Order::view, {.about = kMaxMembers}, std::move(order));
}

void Membership::ask(unsigned number, Stage stage) {
  Member& member = members_[number];
  member.stage = stage;
  member.asked = copies();
  member.inherit.assign(options_.members, RegionMap{regions_.count()});
  for (unsigned i = 0; i < options_.members; ++i)
    if (has(in_step_, i) && members_[i].stage != Stage::down)
      post(i, Order::maps, {.about = number});
}

bool Membership::learn(unsigned number, unsigned from, const Maps& maps) {
  Member& member = members_[number];
  if (member.stage != Stage::asking && member.stage != Stage::inheriting) return false;
  member.asked = without(member.asked, from);
  if (member.stage == Stage::asking)
    member.todo.add(maps.dirty[number]);
  else
    for (unsigned k = 0; k < options_.members; ++k) member.inherit[k].add(maps.dirty[k]);
  return true;
}

// ---- Attaching ----------------------------------------------------------------------------------

void Membership::restart() {
  const MemberSet carry = sent_.written();
  pending_ = {};
  sent_.clear();
  ++term_;
  for (unsigned i = 0; i < voters(); ++i) {
    Member& member = members_[i];
    term_ = std::max(term_, member.claimed.promised + 1);
    if (!has(carry, i)) continue;
    member = Member{};
    host_.drop(i);
  }
  for (unsigned i = 0; i < options_.members; ++i)
    if (members_[i].stage != Stage::down) claim(i);
  if (members_[vote()].stage != Stage::down) members_[vote()].stage = Stage::up;
}

bool Membership::enough(MemberSet kept, const std::vector<MemberSet>& bases) const {
  return std::all_of(bases.begin(), bases.end(), [&](MemberSet base) {
    return are_enough(kept, base, options_.members, options_.degraded);
  });
}

/// Another disk than the one that the newest view has with this number. Where no record names one,
/// as before disks had an identity, it is one that has not come as far.
bool Membership::is_stranger(unsigned member) const {
  const Holder& holder = pedigree_[member];
  const Claimed& claimed = members_[member].claimed;
  return holder.disk != 0 ? holder.disk != claimed.disk : claimed.age() < holder.age;
}

bool Membership::is_set_back(unsigned member) const {
  const Holder& holder = pedigree_[member];
  const Claimed& claimed = members_[member].claimed;
  return holder.disk != 0 && holder.disk == claimed.disk && claimed.age() < holder.age;
}

bool Membership::was_in_view(unsigned number) const {
  const Claimed& claimed = members_[number].claimed;
  return claimed.view.id != ViewId{} && has(claimed.view.set, number);
}

/// From the records with the newest view. An older record may tell of a member what it was before
/// it was set back and got a full copy. All members of the confirmed view have recorded it.
void Membership::learn_pedigree(const ViewId& newest) {
  pedigree_.assign(voters(), {});
  for (unsigned i = 0; i < voters(); ++i) {
    if (members_[i].stage != Stage::claimed || told_view(i).id != newest) continue;
    const Pedigree& told = members_[i].claimed.pedigree;
    for (unsigned k = 0; k < std::min<std::size_t>(told.size(), pedigree_.size()); ++k) {
      pedigree_[k].disk = told[k].disk;
      pedigree_[k].age = std::max(pedigree_[k].age, told[k].age);
    }
  }
  for (unsigned k = 0; k < voters(); ++k)
    if (pedigree_[k].disk == 0 && has(confirmed_.set, k)) pedigree_[k].age = {confirmed_.id, 0};
}

/// The newest view of its record. A void one says no more than the view that the vote knows to have
/// been in force before it. A member joins a view in force only, and otherwise views become
/// smaller. So those between the two had all disks of the void one, and the disk that lacks it
/// lacks none that was in force. The pedigree holds for the view before, too: disks that were to
/// join had everything.
const View& Membership::told_view(unsigned member) const {
  const Claimed& claimed = members_[member].claimed;
  return member == vote() && is_void(claimed) ? claimed.confirmed : claimed.view;
}

/// A view that the vote has recorded, and a disk of it has not, was never in force. It cannot be
/// any more, as the disk has promised a higher term. A disk that was set back may have had it.
bool Membership::is_void(const Claimed& vote) const {
  for (unsigned i = 0; i < options_.members; ++i) {
    const Claimed& claimed = members_[i].claimed;
    const bool is_there = members_[i].stage == Stage::claimed && has(vote.view.set, i) &&
                          i < vote.pedigree.size() && vote.pedigree[i].disk == claimed.disk;
    if (is_there && claimed.view.id < vote.view.id && claimed.age() >= vote.pedigree[i].age)
      return true;
  }
  return false;
}

/// The smallest one by the records of the members in step. All of them have recorded a size before
/// anybody has seen it. Nobody has seen more than that, and the view takes it back from the others.
std::uint64_t Membership::size_of_candidates(MemberSet candidates) const {
  std::uint64_t least = 0;
  for (unsigned i = 0; i < options_.members; ++i) {
    const std::uint64_t size = members_[i].claimed.size;
    if (has(candidates, i) && size != 0 && (least == 0 || size < least)) least = size;
  }
  return least != 0 ? least : options_.size;
}

std::optional<Attachment> Membership::attachment(bool hurry) {
  MemberSet present = 0;
  View newest;
  confirmed_ = {};
  for (unsigned i = 0; i < voters(); ++i) {
    if (members_[i].stage != Stage::claimed) continue;
    present = with(present, i);
    const Claimed& claimed = members_[i].claimed;
    if (told_view(i).id >= newest.id) newest = told_view(i);
    if (claimed.confirmed.id >= confirmed_.id) confirmed_ = claimed.confirmed;
  }
  newest_ = newest.id;
  learn_pedigree(newest_);
  const bool is_complete = size(present) == options_.members + (options_.vote ? 1 : 0);
  if (present == 0 || (!is_complete && !hurry)) return {};
  if (newest.id == ViewId{}) return is_complete ? first_view() : std::nullopt;
  // A disk that answers is not always the member. Of `gone` members the newest state is lost, as
  // the disk is a new one or was set back. `absent` are these, and those with another disk in their
  // place. Nothing proves that such a member has not gone on alone.
  MemberSet gone = 0, absent = 0, set_back = 0;
  for (unsigned i = 0; i < voters(); ++i) {
    if (!has(present, i)) continue;
    if (is_set_back(i)) set_back = with(set_back, i);
    if (members_[i].claimed.view.id == ViewId{} || is_set_back(i)) gone = with(gone, i);
    if (has(gone, i) || is_stranger(i)) absent = with(absent, i);
  }
  const auto counted = static_cast<MemberSet>(present & ~absent);
  if (lacks_history()) return {};
  std::vector<MemberSet> bases{newest.set};
  // None before the first view, which is the first member's alone.
  if (confirmed_.id != ViewId{}) bases.push_back(confirmed_.set);
  // As many as a newer view needs at least must not be able to exist among the missing.
  for (const MemberSet base : bases) {
    const auto missing = static_cast<MemberSet>(base & ~counted);
    if (are_enough(missing, base, options_.members, options_.degraded)) return {};
  }
  // Another client may still read from a member that is not claimed here.
  const MemberSet copies = disks_of(newest.set, options_.members);
  if (!within(copies, counted) && !host_.leases_ended()) return {};
  Attachment found;
  found.candidates = static_cast<MemberSet>(copies & counted);
  found.size = size_of_candidates(found.candidates);
  const RegionMap none{regions_.count_of(sectors_of(found.size))};
  found.inherit.assign(options_.members, none);
  found.unequal = found.active = none;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(counted, i)) continue;
    const Claimed& claimed = members_[i].claimed;
    for (unsigned k = 0; k < options_.members; ++k) found.inherit[k].add(claimed.maps.dirty[k]);
    if (!has(found.candidates, i)) continue;
    if (!claimed.lost_power) found.good = with(found.good, i);
    pedigree_[i].age = std::max(pedigree_[i].age, claimed.age());
    found.unequal.add(claimed.maps.active);
    found.active.add(claimed.maps.active);
  }
  // All have lost their power: flushed writes are on all of them, if none is missing. One that was
  // set back is there, and nowhere else. Where a blank disk stands for another one, as many are
  // there as without a vote, or that one may be elsewhere and have what was not flushed.
  const auto lost = static_cast<MemberSet>(copies & ~found.candidates);
  const auto elsewhere = static_cast<MemberSet>(lost & ~set_back);
  const auto there = static_cast<MemberSet>(copies & ~elsewhere);
  const bool are_all = within(lost, gone) &&
                       !are_enough(elsewhere, copies, options_.members, options_.degraded) &&
                       are_enough(there, copies, options_.members, options_.degraded);
  if (found.good == 0 && are_all) found.good = found.candidates;
  if (found.good != 0 && has(newest.set & counted, vote())) {
    found.good = with(found.good, vote());
    pedigree_[vote()].age = std::max(pedigree_[vote()].age, members_[vote()].claimed.age());
  }
  found.enough = enough(found.good, bases);
  return found;
}

/// A new group's disk is the one of its first member. The others get copies before they are in a
/// view: until then they are neither read nor a source. All must be there, so that nothing changes
/// while one of them holds data of others, which a mistyped server does, or while the vote may know
/// of earlier views.
std::optional<Attachment> Membership::first_view() const {
  for (unsigned i = 1; i < options_.members; ++i)
    if (holds_data(i)) return {};
  Attachment found;
  found.candidates = found.good = bit(0);
  found.enough = true;
  found.size = size_of_candidates(static_cast<MemberSet>(bit(vote()) - 1));
  const RegionMap none{regions_.count_of(sectors_of(found.size))};
  found.unequal = found.active = none;
  found.active.add(members_[0].claimed.maps.active);
  found.inherit.assign(options_.members, none);
  for (unsigned k = 1; k < options_.members; ++k) found.inherit[k].add_all();
  return found;
}

bool Membership::rise() {
  if (term_ == confirmed_.id.term) {
    for (const Member& member : members_) term_ = std::max(term_, member.claimed.promised + 1);
    seq_ = 0;
    for (unsigned i = 0; i < voters(); ++i)
      if (has(must_promise(), i)) post_claim(i);
  }
  return must_promise() == 0;
}

/// A session can outlive its server. If the power has lasted since the view, all answered writes
/// are there, and if no other view came, no other client has changed them.
bool Membership::granted(unsigned member, const Claimed& answer) {
  const bool lost_power = answer.lost_power && member != vote();
  if (lost_power || answer.view.id != confirmed_.id) return false;
  if (answer.disk != pedigree_[member].disk || answer.age() < pedigree_[member].age) return false;
  claimed(member, answer);
  members_[member].claimed.promised = term_;
  send_view();
  return true;
}

/// The next view waits until these members in step have promised its term. Otherwise one of them
/// may record it, while the others let a client with a lower term attach and write. A member that
/// joins is not asked: no client can do that with its vote alone.
MemberSet Membership::must_promise() const {
  MemberSet set = 0;
  for (unsigned i = 0; i < voters(); ++i)
    if (has(in_step_ & base(), i) && members_[i].claimed.promised != term_) set = with(set, i);
  return set;
}

/// The others get full copies. A disk that has lost its place stays as it is.
void Membership::begin_history() {
  constexpr unsigned kHistory = 32;  // bit of the term
  for (const Member& member : members_)
    term_ = std::max({term_, member.claimed.promised, member.claimed.view.id.term});
  term_ = (history_of(term_) + 1) << kHistory;
  seq_ = 0;
}

// ---- Growth -------------------------------------------------------------------------------------

void Membership::ask_to_grow() {
  if (std::exchange(growth_.asked, true)) return;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(in_step_, i)) continue;
    Command order;
    order.size = growth_.size;
    order.base = size_;
    order.view = confirmed_;
    post(i, Order::grow, {.view = confirmed_.id}, std::move(order));
  }
}

/// A growth that is given up ends with another view.
bool Membership::has_grown(unsigned member, const ViewId& view, std::uint64_t size) {
  if (!grows() || view != confirmed_.id) return false;
  members_[member].claimed.size = size;
  return true;
}

bool Membership::all_have_grown() const {
  for (unsigned i = 0; i < options_.members; ++i)
    if (has(in_step_, i) && members_[i].claimed.size < growth_.size) return false;
  return true;
}

// ---- Views --------------------------------------------------------------------------------------

bool Membership::propose(MemberSet set, const std::vector<RegionMap>& inherit) {
  if (set == 0 || (phase_ == Phase::live && !enough(set, {in_step_}))) return false;
  begin_view(set, inherit);
  return true;
}

/// Without the others no client goes on with this one: of three or more it is too few, and of two
/// it lacks the other one, whatever `degraded` says.
void Membership::exclude(MemberSet members) {
  begin_view(static_cast<MemberSet>(in_step_ & ~members), {});
}

void Membership::begin_view(MemberSet set, const std::vector<RegionMap>& inherit) {
  // A member that has recorded that view has forgotten what those in it lacked.
  Pedigree pedigree = pending_.active ? std::move(pending_.pedigree) : pedigree_;
  pending_ = {.view = {{term_, ++seq_}, set},
              .inherit = inherit,
              .pedigree = std::move(pedigree),
              .active = true};
  for (unsigned i = 0; i < voters(); ++i) {
    const Claimed& claimed = members_[i].claimed;
    if (has(set, i) && !has(in_step_, i)) pending_.pedigree[i] = {claimed.disk, claimed.age()};
  }
  send_view();
}

/// The vote gets the view before the disks. If it is lost together with a disk, no disk waits for
/// it that has recorded a view with it: the lost disk is enough to go on.
void Membership::send_view() {
  if (!pending_.active || must_promise() != 0) return;
  const MemberSet set = pending_.view.set;
  const bool asks_vote = has(set, vote()) && !has(pending_.acked, vote());
  for (unsigned i = 0; i < voters(); ++i) {
    if (!has(set, i) || (i == vote()) != asks_vote) continue;
    Command order;
    order.view = pending_.view;
    order.confirmed = size(set) == 1 ? pending_.view : confirmed_;  // in force once it is recorded
    order.inherit = pending_.inherit;
    order.pedigree = pending_.pedigree;
    order.size = size_;
    post(i, Order::view, {.view = pending_.view.id}, std::move(order));
  }
}

bool Membership::recorded(unsigned member, const ViewId& view) {
  if (!pending_.active || pending_.view.id != view) return false;
  const bool is_first = pending_.acked == 0;
  pending_.acked = with(pending_.acked, member);
  if (within(pending_.view.set, pending_.acked)) return commit(), true;
  if (member == vote() && is_first) send_view();
  return false;
}

void Membership::commit() {
  confirmed_ = pending_.view;
  in_step_ = pending_.view.set;
  copies_ = disks_of(in_step_, options_.members);
  pedigree_ = std::move(pending_.pedigree);
  pending_ = {};
  const bool first = phase_ == Phase::attaching;
  phase_ = Phase::live;
  for (unsigned i = 0; i < voters(); ++i) {
    if (first && members_[i].stage == Stage::claimed && !has(in_step_, i))
      members_[i].stage = Stage::up;
    if (!has(in_step_, i)) continue;
    pedigree_[i].age = {confirmed_.id, 0};
    members_[i].stage = Stage::in_step;
    members_[i].claimed.promised = term_;
    members_[i].claimed.size = size_;
    Command order;
    order.view = confirmed_;
    post(i, Order::confirm, {}, std::move(order));
  }
  if (first) host_.attached();
  rise_ = false;
  for (unsigned i = 0; i < voters(); ++i)
    if (members_[i].stage == Stage::up) claim(i);
}

// ---- Beats --------------------------------------------------------------------------------------

std::uint32_t Membership::next_beat() {
  beat_.view = confirmed_.id;
  return ++beat_.beat;
}

void Membership::post_beat(unsigned member) {
  Command order;
  order.age = beat_;
  post(member, Order::beat, {.beat = beat_.beat}, std::move(order));
}

bool Membership::counted(unsigned member, std::uint32_t beat) {
  if (pending_.active || beat_.view != confirmed_.id || beat != beat_.beat) return false;
  pedigree_[member].age = std::max(pedigree_[member].age, beat_);
  return true;
}

/// No other number is that of an earlier attempt: a client knows all that it has given.
void Membership::count_joining(unsigned number) {
  Claimed& claimed = members_[number].claimed;
  claimed.beat = beat_.beat = std::max(beat_.beat, claimed.beat) + 1;
  Command order;
  order.age = claimed.age();
  post(number, Order::beat, {.beat = claimed.beat}, std::move(order));
}

void Membership::post_cool(unsigned member, const RegionMap& regions) {
  Command order;
  order.age = beat_;
  order.regions = regions;
  post(member, Order::cool, {.beat = beat_.beat}, std::move(order));
}

void Membership::end() {
  phase_ = Phase::over;
  pending_ = {};
  sent_.clear();
}

}  // namespace rnbd::mirror
