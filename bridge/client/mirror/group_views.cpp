// SPDX-License-Identifier: BSD-3-Clause
// How a group attaches, and how one view follows another.
#include <algorithm>

#include "bridge/client/mirror/group.hpp"
#include "bridge/protocol/mirror_plant.hpp"

namespace rnbd::mirror {

/// Begins anew with a term that is above all that is known. A session that may still carry a copy
/// ends: it must not arrive behind newer changes.
void Group::restart() {
  MemberSet carries = 0;
  for (const auto& [tag, sent] : sent_)
    if (sent.order == Order::copy || sent.order == Order::write)
      carries = with(carries, sent.member);
  pending_ = {};
  mending_ = kMaxMembers;
  for (const auto& [id, operation] : operations_)
    if (id >= kOwn) locks_.release(id), host_.done(id);
  std::erase_if(operations_, [](const auto& entry) { return entry.first >= kOwn; });
  sent_.clear();
  if (!RNBD_MIRROR_PLANTED(no_terms)) ++term_;
  for (unsigned i = 0; i < options_.members; ++i) {
    Peer& peer = peers_[i];
    if (!RNBD_MIRROR_PLANTED(no_terms)) term_ = std::max(term_, peer.claimed.promised + 1);
    if (!has(carries, i)) continue;
    peer = Peer{};
    host_.drop(i);
  }
  for (unsigned i = 0; i < options_.members; ++i)
    if (peers_[i].stage != Stage::down) claim(i);
}

void Group::hurry() {
  if (phase_ == Phase::attaching) try_attach(true);
}

bool Group::enough(MemberSet kept, const std::vector<MemberSet>& bases) const {
  if (RNBD_MIRROR_PLANTED(shrink_below_t) && phase_ == Phase::live) return true;
  if (RNBD_MIRROR_PLANTED(attach_any) && phase_ == Phase::attaching) return true;
  return std::all_of(bases.begin(), bases.end(), [&](MemberSet base) {
    return size(static_cast<MemberSet>(kept & base)) >= threshold(base, options_.degraded);
  });
}

/// Members without a view, although the group has one. Their disk was replaced by an empty one, and
/// the old disk may have gone on alone.
MemberSet Group::empty_disks(MemberSet present) const {
  MemberSet empty = 0;
  if (confirmed_.id == ViewId{}) return empty;
  for (unsigned i = 0; i < options_.members; ++i)
    if (has(present, i) && peers_[i].claimed.view.id == ViewId{}) empty = with(empty, i);
  return empty;
}

void Group::try_attach(bool hurry) {
  if (pending_.active || mending_ != kMaxMembers) return;
  MemberSet present = 0;
  View newest;
  confirmed_ = {};
  for (unsigned i = 0; i < options_.members; ++i) {
    if (peers_[i].stage != Stage::claimed) continue;
    present = with(present, i);
    const Claimed& claimed = peers_[i].claimed;
    if (claimed.view.id >= newest.id) newest = claimed.view;
    if (claimed.confirmed.id >= confirmed_.id) confirmed_ = claimed.confirmed;
  }
  if (present == 0 || (size(present) < options_.members && !hurry)) return;
  const MemberSet empty = empty_disks(present);
  std::vector<MemberSet> bases{newest.set};
  if (!RNBD_MIRROR_PLANTED(uncommitted_base)) bases.push_back(confirmed_.set);
  // As many as a newer view needs at least must not be able to exist among the missing.
  for (const MemberSet base : bases) {
    const auto missing = static_cast<MemberSet>(base & ~(present & ~empty));
    if (size(missing) >= threshold(base, options_.degraded) && !RNBD_MIRROR_PLANTED(attach_any))
      return;
  }
  const auto candidates = static_cast<MemberSet>(newest.set & present & ~empty);
  MemberSet good = 0;
  MemberSet fresh = 0;  // in no view yet
  std::vector<RegionMap> inherit(options_.members, RegionMap{options_.regions});
  unequal_.clear();
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(present, i)) continue;
    const Claimed& claimed = peers_[i].claimed;
    for (unsigned k = 0; k < options_.members; ++k) inherit[k].add(claimed.maps.dirty[k]);
    if (!has(candidates, i)) continue;
    if (!claimed.lost_power) good = with(good, i);
    if (claimed.view.id == ViewId{}) fresh = with(fresh, i);
    if (!RNBD_MIRROR_PLANTED(no_al_resync)) unequal_.add(claimed.maps.active);
    hot_.add(claimed.maps.active);
  }
  // All have lost their power: flushed writes are on all of them, if none is missing.
  if (good == 0 && candidates == (newest.set & ~empty))
    good = newest.id == ViewId{} ? candidates : static_cast<MemberSet>(candidates & ~fresh);
  if (good == 0) return;
  if (!enough(good, bases)) {
    const auto source = static_cast<unsigned>(std::countr_zero(good));
    for (unsigned i = 0; i < options_.members; ++i) {
      if (!has(candidates, i) || has(good, i)) continue;
      RegionMap regions = peers_[i].claimed.maps.active;
      regions.add(peers_[source].claimed.maps.active);
      if (mend(i, source, regions)) return;
    }
    return;
  }
  seq_ = RNBD_MIRROR_PLANTED(no_terms) ? newest.id.seq : 0;
  propose(good, inherit);
}

/// A new history begins. Its terms are above all terms that other members may have reached.
bool Group::force(unsigned member) {
  constexpr unsigned kHistory = 32;  // bit of the term
  const bool idle = !pending_.active && mending_ == kMaxMembers;
  if (phase_ != Phase::attaching || !idle || peers_[member].stage != Stage::claimed) return false;
  for (const Peer& peer : peers_)
    term_ = std::max({term_, peer.claimed.promised, peer.claimed.view.id.term});
  term_ = ((term_ >> kHistory) + 1) << kHistory;
  seq_ = 0;
  unequal_.clear();
  hot_.add(peers_[member].claimed.maps.active);
  std::vector<RegionMap> inherit(options_.members, RegionMap{options_.regions});
  for (unsigned k = 0; k < options_.members; ++k)
    if (k != member) inherit[k].add_all();
  propose(bit(member), inherit);
  return true;
}

void Group::discard(unsigned member) {
  if (phase_ == Phase::over || peers_[member].stage == Stage::down) return;
  if (phase_ == Phase::live && in_step_ == bit(member)) return;
  lose(member, true);
}

/// Brings back the regions that a member lost with its power, because its vote is needed.
bool Group::mend(unsigned member, unsigned source, const RegionMap& regions) {
  mending_ = member;
  mending_source_ = source;
  mending_left_ = regions;
  work();
  return true;
}

void Group::propose(MemberSet set, const std::vector<RegionMap>& inherit) {
  if (set == 0 || (phase_ == Phase::live && !enough(set, {in_step_}))) return end();
  pending_ = {.view = {{term_, ++seq_}, set}, .active = true};
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(set, i)) continue;
    Command order;
    command(order, i, Order::view);
    order.view = pending_.view;
    order.confirmed = confirmed_;
    order.inherit = inherit;
    post(order, {.member = i, .order = Order::view, .view = pending_.view.id});
  }
}

void Group::commit() {
  confirmed_ = pending_.view;
  in_step_ = pending_.view.set;
  pending_ = {};
  const bool first = phase_ == Phase::attaching;
  phase_ = Phase::live;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (first && peers_[i].stage == Stage::claimed && !has(in_step_, i))
      peers_[i].stage = Stage::up;
    if (!has(in_step_, i)) continue;
    peers_[i].stage = Stage::in_step;
    Command order;
    command(order, i, Order::confirm);
    order.view = confirmed_;
    post(order, {.member = i, .order = Order::confirm});
  }
  if (first) host_.attached();
  rise_ = false;
  for (unsigned i = 0; i < options_.members; ++i)
    if (peers_[i].stage == Stage::up) claim(i);
  settle_all();
  start_queued();
  work();
}

void Group::end() {
  phase_ = Phase::over;
  pending_ = {};
  operations_.clear();
  sent_.clear();
  host_.over();
}

}  // namespace rnbd::mirror
