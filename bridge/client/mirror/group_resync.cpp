// SPDX-License-Identifier: BSD-3-Clause
// Makes members equal: regions after an unclean end, and members that return. Takes regions out of
// the activity logs.

#include <algorithm>
#include <cerrno>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

void Group::work() {
  if (is_over() || dissolving_.asked) return;
  if (members_.phase() == Phase::attaching) {
    if (!mending_.active()) return;
    const std::uint32_t region = mending_.left.next(0);
    if (region < regions_.count()) return begin_own(Kind::copy, region, mending_.member);
    if (!members_.sent().has_flush()) members_.post(mending_.member, Order::flush, {});
    return;
  }
  grow_next();
  // A member refuses to cool with an older term than it has promised.
  if (members_.must_rise() && activity_.idle() && members_.rise()) return propose(in_step(), {});
  for (unsigned i = 0; i < options_.members; ++i) resync(i);
  let_vote();
  verify_next();
  dissolve_next();
  if (dissolving_.asked) return;
  const std::uint32_t region = unequal_.next(0);
  if (region >= regions_.count() || members_.gate_closed()) return;
  if (!operations_.has_own(Kind::equal, region, 0) && host_.may_copy(0))
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
      if (returning.asked != 0 && (returning.asked & copies()) == 0)
        return members_.ask(member, returning.stage);
      returning.asked = static_cast<MemberSet>(returning.asked & copies());
      if (returning.asked != 0 || members_.proposes()) return;
      if (returning.stage == Stage::inheriting) {
        returning.stage = Stage::joining;
        activity_.add(returning.logged);  // until now no COOL went there
        const std::vector<RegionMap> inherit = returning.inherit;
        return propose(with(in_step(), member), inherit);
      }
      returning.todo.add(returning.claimed.maps.active);
      returning.todo.add(unequal_);
      missed_.add_whole(member, returning.claimed.maps.active);
      missed_.add_whole(member, unequal_);
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
  while (returning.stage == Stage::copying && copy_one(member)) {
  }
  if (returning.stage != Stage::copying) return;
  if (returning.todo.empty() && unequal_.empty()) {
    returning.stage = Stage::settling;
    members_.post(member, Order::flush, {});
  }
}

/// The first flush writes all that was copied. The second one, for which requests wait, is short.
void Group::flushed_joiner(unsigned member) {
  Membership::Member& returning = members_[member];
  if (returning.stage == Stage::flushing) return members_.count_joining(member);
  returning.stage = Stage::emptying;
  resync(member);
}

/// Begins one copy. False: none can begin now.
bool Group::copy_one(unsigned member) {
  Membership::Member& returning = members_[member];
  const unsigned under_way = operations_.copies(member);
  if (operations_.clears(member) || members_.gate_closed()) return false;
  const auto all_begun = [&](std::uint32_t region) {
    const auto passage = returning.passages.find(region);
    return passage != returning.passages.end() && passage->second.begun == units_of(region);
  };
  const auto next = [&](std::uint32_t from) {
    std::uint32_t region = returning.todo.next(from);
    while (region < regions_.count() && all_begun(region)) region = returning.todo.next(region + 1);
    return region;
  };
  std::uint32_t region = next(returning.next_copy);
  if (region >= regions_.count()) region = next(returning.next_copy = 0);
  if (region >= regions_.count()) return false;
  const bool differs = unequal_.contains(region);
  if (differs && operations_.has_own(Kind::equal, region, 0)) return false;
  if (!host_.may_copy(under_way)) return false;
  if (differs) return begin_own(Kind::equal, region, 0), false;
  return begin_clearing(member, region) || begin_unit(member, region);
}

/// The question and what follows it are about all regions in a row that are to be copied. False:
/// they are known to have data, or the member cannot.
bool Group::begin_clearing(unsigned member, std::uint32_t region) {
  const Membership::Member& returning = members_[member];
  if (!missed_.is_whole(member, region)) return false;
  const bool has_data = returning.data_begin <= region && region < returning.data_end;
  if (options_.span == 0 || !returning.clears || has_data || returning.passages.contains(region))
    return false;
  const std::uint32_t most =
      host_.has_requests() ? std::min(options_.span, options_.span_beside) : options_.span;
  std::uint32_t last = region;
  const auto follows = [&](std::uint32_t next) {
    return next < regions_.count() && next - region < most && returning.todo.contains(next) &&
           !unequal_.contains(next) && !returning.passages.contains(next) &&
           missed_.is_whole(member, next);
  };
  while (follows(last + 1)) ++last;
  begin_own({.kind = Kind::copy,
             .range = {regions_.range_of(region).begin, regions_.range_of(last).end},
             .region = region,
             .target = member,
             .clears = true});
  return true;
}

/// Units of which it lacks nothing count as copied.
bool Group::begin_unit(unsigned member, std::uint32_t region) {
  Membership::Passage& passage = members_[member].passages[region];
  if (passage.begun == 0) passage.number = ++last_pass_;
  Range lacking{};
  while (lacking.end == lacking.begin && passage.begun < units_of(region)) {
    lacking = missed_.lacking(member, unit_of(region, passage.begun++));
    if (lacking.end == lacking.begin) ++passage.done;
  }
  if (lacking.end == lacking.begin) {
    if (passage.done == units_of(region)) end_passage(member, region);
    return true;
  }
  begin_own({.kind = Kind::copy,
             .range = lacking,
             .region = region,
             .target = member,
             .pass = passage.number});
  return true;
}

void Group::end_passage(unsigned member, std::uint32_t region) {
  members_[member].todo.remove(region);
  members_[member].passages.erase(region);
}

Range Group::unit_of(std::uint32_t region, std::uint32_t unit) const {
  const Range whole = regions_.range_of(region);
  const std::uint64_t begin = whole.begin + unit * options_.unit_sectors;
  return {begin, std::min(begin + options_.unit_sectors, whole.end)};
}

std::uint32_t Group::units_of(std::uint32_t region) const {
  const Range whole = regions_.range_of(region);
  return static_cast<std::uint32_t>((whole.end - whole.begin + options_.unit_sectors - 1) /
                                    options_.unit_sectors);
}

/// A region is copied when all its units are, in one passage.
void Group::copied(const Operation& copy) {
  const bool done = has(copy.acked, copy.target);
  if (members_.phase() == Phase::attaching) {
    if (done) mending_.left.remove(copy.region);
    return;
  }
  Membership::Member& returning = members_[copy.target];
  if (copy.clears) {
    for (auto region = copy.region; done && region <= regions_.last(copy.range); ++region)
      returning.todo.remove(region);
    return;
  }
  const auto passage = returning.passages.find(copy.region);
  if (passage == returning.passages.end() || passage->second.number != copy.pass) return;
  if (!done) return void(returning.passages.erase(passage));
  if (++passage->second.done < units_of(copy.region)) return;
  end_passage(copy.target, copy.region);
}

// ---- Zeroes -------------------------------------------------------------------------------------

/// One member in step says where zeroes are, and all in step have them there. The range is locked
/// until they are at the target, too.
void Group::ask(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::asking;
  operation.sent = operation.acked = 0;
  operation.source = preferred_;
  while (!has(copies(), operation.source)) operation.source = next_read_++ % options_.members;
  if (members_[operation.source].stage == Stage::down) return;
  operation.sent = bit(operation.source);
  members_.post(operation.source, Order::extents, {.operation = id},
                {.range = operation.range, .operation = id});
}

/// The source was in step, or has no answer any more. Regions behind the first one with data are
/// asked about again. A source without an answer may have data in that one.
void Group::told(std::uint64_t id, unsigned source, const Answer& answer) {
  if (answer.error == ESTALE) return lose(source, true);
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  Membership::Member& target = members_[operation.target];
  const bool counts = live() && !members_.proposes() && !is_claimed_anew(bit(source));
  if (!counts || target.stage != Stage::copying) return give_up(id);
  const bool begins = !answer.zeroes.empty() && answer.zeroes.front().begin == 0;
  const std::uint32_t behind =
      region_behind(operation.range, begins ? answer.zeroes.front().end : 0);
  if (answer.error == 0 && behind > operation.region) {
    operation.range.end = regions_.range_of(behind - 1).end;
    return clear(id);
  }
  target.data_begin = operation.region;
  target.data_end = std::max(operation.region + 1, end_of_data(operation.range, answer));
  give_up(id);
}

/// The first region that does not end before this sector of the range.
std::uint32_t Group::region_behind(const Range& range, std::uint64_t sector) const {
  const std::uint64_t end = range.begin + sector;
  return end >= range.end ? regions_.last(range) + 1 : regions_.first({end, end});
}

/// The first region that is all zeroes, or that was not told as a whole. A region with a few zeroes
/// is read, so it need not be asked about.
std::uint32_t Group::end_of_data(const Range& range, const Answer& answer) const {
  for (const Range& zeroes : answer.zeroes) {
    const std::uint64_t begin = range.begin + zeroes.begin + regions_.region_sectors() - 1;
    const std::uint32_t region = regions_.first({begin, begin});
    if (region < region_behind(range, zeroes.end)) return region;
  }
  return region_behind(range, answer.told);
}

void Group::clear(std::uint64_t id) {
  Operation& operation = operations_.at(id);
  operation.step = Step::writing;
  operation.acked = 0;
  operation.sent = bit(operation.target);
  members_.post(operation.target, Order::clear, {.operation = id},
                {.range = operation.range, .operation = id, .source = operation.source});
}

void Group::cleared(std::uint64_t id, unsigned member, int error) {
  if (error != 0 && error != EOPNOTSUPP) return lose(member, true);
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  if (error != 0) {
    members_[member].clears = false;
    return give_up(id);
  }
  found->second.acked = bit(member);
  settle(id);
  work();
}

void Group::give_up(std::uint64_t id) {
  operations_.erase(id);
  host_.done(id);
  for (const std::uint64_t next : locks_.release(id)) run(next);
  work();
}

// ---- Cooling ------------------------------------------------------------------------------------

/// A server that was started anew knows nothing of the claim. Where nobody writes, no other order
/// would tell that the vote counts no more.
void Group::ask_vote() {
  const unsigned vote = members_.vote();
  if (members_[vote].stage != Stage::in_step || has(echoing_, vote)) return;
  echoing_ = with(echoing_, vote);
  members_.post(vote, Order::echo, {});
}

/// Operations that are under way may be about regions of the logs, too.
void Group::cool() {
  if (dissolving_.asked) return;
  if (members_.gate_closed() || members_.must_rise() || !activity_.idle()) return;
  ask_vote();
  const MemberSet flushing = copies();
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
    if (!has(copies(), i) || members_[i].stage != Stage::in_step) continue;  // lost meanwhile
    clearing = with(clearing, i);
    members_.post_cool(i, activity_.leaving());
  }
  // The vote has no log. Nothing waits for it, as changes wait until the others have cleared
  // theirs.
  const unsigned vote = members_.vote();
  if (members_[vote].stage == Stage::in_step) members_.post_cool(vote, RegionMap{});
  activity_.clear(clearing);
}

void Group::cooled() {
  start_queued();
  work();
}

}  // namespace rnbd::mirror
