// SPDX-License-Identifier: BSD-3-Clause
// The disk of a mirror grows when those of its members have.
#include <algorithm>
#include <cerrno>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

void Group::look_at_rooms(MemberSet spared) {
  if (!live() || members_.grows() || dissolving_.active() || asking_ != 0) return;
  spared_ = spared;
  for (unsigned i = 0; i < options_.members; ++i) {
    if (members_[i].stage != Stage::in_step) continue;
    asking_ = with(asking_, i);
    members_.post(i, Order::room, {});
  }
}

/// A server that knows no growth has an error for that, and goes on otherwise.
void Group::told_room(unsigned member, const Answer& answer) {
  if (answer.error == ESTALE) return lose(member, true);
  asking_ = without(asking_, member);
  members_[member].room = answer.error == 0 ? answer.room : 0;
  if (asking_ == 0) begin_growth();
}

/// A member that comes back meanwhile would need the new room, too, before it may be in step. So
/// none is there that is not in step.
void Group::begin_growth() {
  if (!live() || members_.gate_closed() || members_.must_rise() || dissolving_.active()) return;
  std::uint64_t room = ~std::uint64_t{0};
  for (unsigned i = 0; i < options_.members; ++i) {
    const Membership::Member& member = members_[i];
    if (member.stage == Stage::in_step)
      room = std::min(room, member.room);
    else if (!has(spared_, i) || member.stage != Stage::down)
      return;
  }
  const std::uint64_t size = size_for(room);
  if (size <= disk_size()) return;
  members_.begin_growth(size);
  grow_next();
}

/// An end within a block stays, as requests may reach over it. Regions keep their size.
std::uint64_t Group::size_for(std::uint64_t room) const {
  if (disk_size() % options_.granule != 0) return 0;
  const std::uint64_t most = options_.most_regions * options_.region_sectors * 512;
  const std::uint64_t size = std::min(room, most);
  return size - size % options_.granule;
}

/// Nothing is under way while the members record it, and nobody takes regions out of their logs.
void Group::grow_next() {
  if (!members_.grows() || !operations_.none_under_way() || !activity_.idle()) return;
  members_.ask_to_grow();
}

bool Group::prepares_growth() const { return members_.grows() && !members_.has_asked_to_grow(); }

/// No member knows of it yet.
void Group::put_off_growth() {
  if (!prepares_growth()) return;
  members_.end_growth();
  host_.not_grown(kMaxMembers, 0);
  start_queued();
  work();
}

/// One that answers less does not know growth. One whose disk, or whose record, has no room any
/// more stays.
void Group::grown(const SentCommand& sent, const Answer& answer) {
  if (answer.error == ESTALE || answer.error == EIO) return lose(sent.member, true);
  const std::uint64_t size = answer.error == 0 ? answer.claimed.size : disk_size();
  if (!members_.has_grown(sent.member, sent.view, size)) return;
  if (size < members_.next_size()) return give_up_growth(sent.member, answer.error);
  if (members_.all_have_grown()) end_growth();
}

/// The view takes it back from those that have recorded it. Otherwise a later client could find the
/// new room with all of them, and regions there that were taken out of the logs half equal.
void Group::give_up_growth(unsigned member, int error) {
  members_.end_growth();
  host_.not_grown(member, error);
  propose(in_step(), {});
}

/// All in step have recorded it. Nothing is known of the new room, nor of a last region that was a
/// part of one. The view makes records of before the growth older ones.
void Group::end_growth() {
  const std::uint64_t before = sectors_of(disk_size());
  resize(members_.next_size());
  members_.end_growth();
  RegionMap tail{regions_.count()};
  for (auto region = regions_.first({before, before}); region < regions_.count(); ++region)
    tail.add(region);
  unequal_.add(tail);
  activity_.add(tail);
  for (unsigned i = 0; i < options_.members; ++i) missed_.add_whole(i, tail);
  for (auto& [id, operation] : operations_)
    if (operation.kind == Kind::equal && !operation.repairs)
      operation.range = regions_.range_of(operation.region);
  host_.grown();
  propose(in_step(), {});
}

/// The maps of members that come back are made when they do.
void Group::resize(std::uint64_t size) {
  members_.set_disk_size(size);
  if (regions_.sectors() == sectors_of(size)) return;
  regions_.resize(sectors_of(size));
  unequal_.resize(regions_.count());
  activity_.resize();
  missed_.resize();
  for (unsigned i = 0; i < options_.members; ++i)
    if (members_[i].repaired.regions() != 0) members_[i].repaired.resize(regions_.count());
}

}  // namespace rnbd::mirror
