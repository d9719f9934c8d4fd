// SPDX-License-Identifier: BSD-3-Clause
// Makes members equal: regions after an unclean end, and members that return. Takes regions out of
// the activity logs.

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

void Group::work() {
  if (is_over()) return;
  if (members_.phase() == Phase::attaching) {
    if (!mending_.active()) return;
    const std::uint32_t region = mending_.left.next(0);
    if (region < options_.regions) return begin_own(Kind::copy, region, mending_.member);
    if (!members_.sent().has_flush()) members_.post(mending_.member, Order::flush, {});
    return;
  }
  // A member refuses to cool with an older term than it has promised.
  if (members_.must_rise() && activity_.idle() && members_.rise()) return propose(in_step(), {});
  for (unsigned i = 0; i < options_.members; ++i) resync(i);
  const std::uint32_t region = unequal_.next(0);
  if (region >= options_.regions || members_.gate_closed()) return;
  if (!operations_.has_own(Kind::equal, region, 0) && host_.may_copy())
    begin_own(Kind::equal, region, 0);
}

/// Takes a returning member one step further, if possible.
void Group::resync(unsigned member) {
  Membership::Member& returning = members_[member];
  switch (returning.stage) {
    case Stage::draining: {
      std::erase_if(returning.older, [&](std::uint64_t id) { return !operations_.contains(id); });
      if (returning.older.empty()) members_.ask(member, Stage::asking);
      return;
    }
    case Stage::asking:
    case Stage::inheriting:
      // Members that joined since then know it, too.
      if (returning.asked != 0 && (returning.asked & in_step()) == 0)
        return members_.ask(member, returning.stage);
      returning.asked = static_cast<MemberSet>(returning.asked & in_step());
      if (returning.asked != 0 || members_.proposes()) return;
      if (returning.stage == Stage::inheriting) {
        returning.stage = Stage::joining;
        activity_.add(returning.logged);  // until now no COOL went there
        const std::vector<RegionMap> inherit = returning.inherit;
        return propose(with(in_step(), member), inherit);
      }
      returning.todo.add(returning.claimed.maps.active);
      returning.todo.add(unequal_);
      returning.stage = Stage::copying;
      [[fallthrough]];
    case Stage::copying:
      return copy_next(member);
    case Stage::emptying: {
      if (!operations_.none_under_way() || members_.proposes() || !activity_.idle()) return;
      if (!unequal_.empty() || !returning.todo.empty()) {  // the last changes were refused
        returning.stage = Stage::copying;
        return start_queued();
      }
      returning.stage = Stage::flushing;
      return members_.post(member, Order::flush, {});
    }
    default:
      return;
  }
}

void Group::copy_next(unsigned member) {
  Membership::Member& returning = members_[member];
  if (members_.gate_closed()) return;
  std::uint32_t region = returning.todo.next(returning.next_copy);
  if (region >= options_.regions) region = returning.todo.next(returning.next_copy = 0);
  if (region < options_.regions) {
    const bool differs = unequal_.contains(region);
    const Kind kind = differs ? Kind::equal : Kind::copy;
    const unsigned target = differs ? 0 : member;
    if (!operations_.has_own(kind, region, target) && host_.may_copy())
      begin_own(kind, region, target);
    return;
  }
  if (!unequal_.empty()) return;
  returning.stage = Stage::emptying;
  resync(member);
}

/// Operations that are under way may be about regions of the logs, too.
void Group::cool() {
  if (members_.gate_closed() || members_.must_rise() || !activity_.idle()) return;
  const MemberSet flushing = in_step();
  if (!activity_.begin(unequal_, flushing)) return;
  for (const auto& [id, operation] : operations_) activity_.touch(operation.range);
  const std::uint32_t beat = members_.next_beat();
  for (unsigned i = 0; i < options_.members; ++i)
    if (has(flushing, i)) members_.post(i, Order::flush, {.beat = beat});
}

void Group::flushed_for_cooling(unsigned member, std::uint32_t beat) {
  if (beat == members_.beat()) members_.post_beat(member);
}

void Group::counted(unsigned member, std::uint32_t beat) {
  if (members_[member].stage == Stage::flushing) return members_.ask(member, Stage::inheriting);
  if (!members_.counted(member, beat) || !activity_.flushed(member)) return;
  MemberSet clearing = 0;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (!has(in_step(), i) || members_[i].stage != Stage::in_step) continue;  // lost meanwhile
    clearing = with(clearing, i);
    members_.post_cool(i, activity_.leaving());
  }
  activity_.clear(clearing);
}

void Group::cooled() {
  start_queued();
  work();
}

}  // namespace rnbd::mirror
