// SPDX-License-Identifier: BSD-3-Clause
// Makes members equal: regions after an unclean end, and members that return. Takes regions out of
// the activity logs.
#include <algorithm>

#include "bridge/client/mirror/group.hpp"
#include "bridge/protocol/mirror_plant.hpp"

namespace rnbd::mirror {

void Group::work() {
  if (phase_ == Phase::over) return;
  if (phase_ == Phase::attaching) {
    if (mending_ == kMaxMembers) return;
    const std::uint32_t region = mending_left_.next(0);
    if (region < options_.regions) return begin_own(Kind::copy, region, mending_);
    const bool asked = std::any_of(sent_.begin(), sent_.end(), [](const auto& sent) {
      return sent.second.order == Order::flush;
    });
    if (asked) return;
    Command order;
    return post(command(order, mending_, Order::flush),
                {.member = mending_, .order = Order::flush});
  }
  // A member that has promised a higher term accepts only a client with a still higher one.
  if (rise_ && !gate_closed()) {
    for (const Peer& peer : peers_) term_ = std::max(term_, peer.claimed.promised + 1);
    seq_ = 0;
    return propose(in_step_, {});
  }
  for (unsigned i = 0; i < options_.members; ++i) resync(i);
  const std::uint32_t region = unequal_.next(0);
  if (region >= options_.regions || gate_closed() || has_own(Kind::equal, region, 0)) return;
  if (host_.may_copy()) begin_own(Kind::equal, region, 0);
}

/// Takes a returning member one step further, if possible.
void Group::resync(unsigned member) {
  Peer& peer = peers_[member];
  switch (peer.stage) {
    case Stage::draining: {
      std::erase_if(peer.older, [&](std::uint64_t id) { return !operations_.contains(id); });
      if (!peer.introduced) return;
      if (peer.older.empty() || RNBD_MIRROR_PLANTED(d_snapshot_early)) ask(member, Stage::asking);
      return;
    }
    case Stage::asking:
    case Stage::inheriting:
      peer.asked = static_cast<MemberSet>(peer.asked & in_step_);
      if (peer.asked != 0 || pending_.active) return;
      if (peer.stage == Stage::inheriting) return join(member);
      if (!RNBD_MIRROR_PLANTED(no_strays)) peer.todo.add(peer.claimed.maps.active);
      peer.todo.add(unequal_);
      peer.stage = Stage::copying;
      [[fallthrough]];
    case Stage::copying:
      return copy_next(member);
    case Stage::emptying: {
      if (!nothing_under_way() || pending_.active || cooling_step_ != Cooling::none) return;
      if (RNBD_MIRROR_PLANTED(join_no_flush)) return ask(member, Stage::inheriting);
      peer.stage = Stage::flushing;
      Command order;
      return post(command(order, member, Order::flush), {.member = member, .order = Order::flush});
    }
    default:
      return;
  }
}

/// A new member learns of the view before it is in one itself. From then on it differs from an
/// empty disk in its place.
void Group::introduce(unsigned member) {
  Command order;
  command(order, member, Order::view);
  order.view = order.confirmed = confirmed_;
  post(order, {.member = member, .order = Order::view, .about = kMaxMembers});
}

/// Asks all in step for the regions that others lack.
void Group::ask(unsigned member, Stage stage) {
  Peer& peer = peers_[member];
  peer.stage = stage;
  peer.asked = in_step_;
  peer.inherit.assign(options_.members, RegionMap{options_.regions});
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(in_step_, i) || peers_[i].stage == Stage::down) continue;
    Command order;
    post(command(order, i, Order::maps), {.member = i, .order = Order::maps, .about = member});
  }
}

void Group::maps(unsigned about, unsigned from, const Maps& maps) {
  Peer& peer = peers_[about];
  if (peer.stage != Stage::asking && peer.stage != Stage::inheriting) return;
  peer.asked = without(peer.asked, from);
  if (peer.stage == Stage::asking)
    peer.todo.add(maps.dirty[about]);
  else
    for (unsigned k = 0; k < options_.members; ++k) peer.inherit[k].add(maps.dirty[k]);
  work();
}

void Group::copy_next(unsigned member) {
  Peer& peer = peers_[member];
  if (gate_closed()) return;
  const std::uint32_t region = peer.todo.next(0);
  if (region < options_.regions && !RNBD_MIRROR_PLANTED(join_early)) {
    const bool differs = unequal_.contains(region);
    const Kind kind = differs ? Kind::equal : Kind::copy;
    const unsigned target = differs ? 0 : member;
    if (!has_own(kind, region, target) && host_.may_copy()) begin_own(kind, region, target);
    return;
  }
  if (!unequal_.empty()) return;
  peer.stage = Stage::emptying;
  resync(member);
}

void Group::join(unsigned member) {
  Peer& peer = peers_[member];
  peer.stage = Stage::joining;
  const std::vector<RegionMap> inherit = peer.inherit;
  propose(with(in_step_, member), inherit);
}

void Group::cool() {
  if (gate_closed() || cooling_step_ != Cooling::none) return;
  cooling_ = hot_;
  cooling_.remove(unequal_);
  touched_.clear();
  for (const auto& [id, operation] : operations_) touch(operation.range, touched_);
  if (cooling_.empty()) return;
  cooling_step_ = Cooling::flushing;
  cooling_waits_ = in_step_;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(in_step_, i)) continue;
    Command order;
    post(command(order, i, Order::flush),
         {.member = i, .order = Order::flush, .about = kMaxMembers});
    if (RNBD_MIRROR_PLANTED(al_clear_early)) break;
  }
  if (RNBD_MIRROR_PLANTED(al_clear_early)) cooling_waits_ = bit(std::countr_zero(in_step_));
}

void Group::flushed_for_cooling(unsigned member) {
  if (cooling_step_ != Cooling::flushing) return;
  cooling_waits_ = without(cooling_waits_, member);
  if (cooling_waits_ != 0) return;
  cooling_.remove(touched_);
  cooling_step_ = Cooling::clearing;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(in_step_, i) || peers_[i].stage != Stage::in_step) continue;  // lost meanwhile
    cooling_waits_ = with(cooling_waits_, i);
    Command order;
    command(order, i, Order::cool);
    order.regions = cooling_;
    post(order, {.member = i, .order = Order::cool});
  }
  if (cooling_waits_ == 0) cooling_step_ = Cooling::none;
}

void Group::cooled(unsigned member) {
  if (cooling_step_ != Cooling::clearing) return;
  cooling_waits_ = without(cooling_waits_, member);
  if (cooling_waits_ != 0) return;
  hot_.remove(cooling_);
  cooling_step_ = Cooling::none;
  start_queued();
  work();
}

}  // namespace rnbd::mirror
