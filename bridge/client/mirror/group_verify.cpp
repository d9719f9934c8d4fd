// SPDX-License-Identifier: BSD-3-Clause
// Compares the copies of the members in step, as an operator wants it.
#include <bit>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

bool Group::verify(unsigned source) {
  const bool begins = live() && size(copies()) > 1 && operations_.verifies() == 0 &&
                      !verification_.is_running() &&
                      (source == kMaxMembers || has(copies(), source));
  if (!begins) return false;
  verification_ = {.state = Verification::State::running,
                   .source = source,
                   .members = copies(),
                   .everywhere = copies()};
  work();
  return true;
}

void Group::end_verify() {
  if (verification_.is_running()) verification_.state = Verification::State::stopped;
}

/// Begins as many units as may be under way.
void Group::verify_next() {
  Verification& pass = verification_;
  if (!pass.is_running()) return;
  if (size(copies()) < 2 || (pass.repairs() && !has(copies(), pass.source)))
    pass.state = Verification::State::single;
  while (pass.is_running() && pass.region < regions_.count() && !members_.gate_closed()) {
    const std::uint32_t region = pass.region;
    const Range range = unit_of(region, pass.unit);
    const bool left_out = unequal_.contains(region);
    if (!left_out && !host_.may_copy(operations_.verifies())) return;
    if (++pass.unit == units_of(region)) ++pass.region, pass.unit = 0;
    if (left_out)
      pass.left_out += range.end - range.begin;
    else
      begin_own({.kind = Kind::verify, .range = range, .region = region});
  }
  if (pass.is_running() && pass.region == regions_.count() && operations_.verifies() == 0)
    pass.state = Verification::State::done;
}

/// All members in step have shown it, or failed to. No change to it is under way. Regions that
/// are to be made equal may differ. A region in which one could not be read is repaired as a whole:
/// what cannot be read there after that costs the member its place.
void Group::compared(std::uint64_t id) {
  const Operation operation = operations_.at(id);
  const auto read = static_cast<MemberSet>(operation.acked & copies());
  Difference found{.operation = id,
                   .range = operation.range,
                   .unreadable = static_cast<MemberSet>(operation.unreadable & copies())};
  const bool counts = !regions_.meets(operation.range, unequal_) &&
                      size(static_cast<MemberSet>(read | found.unreadable)) > 1;
  std::uint64_t& sectors = counts ? verification_.compared : verification_.left_out;
  sectors += operation.range.end - operation.range.begin;
  if (counts)
    verification_.everywhere =
        static_cast<MemberSet>(verification_.everywhere & (read | found.unreadable));
  if (counts && read != 0) {
    const bool has_source = verification_.repairs() && has(read, verification_.source);
    found.reference =
        has_source ? verification_.source : static_cast<unsigned>(std::countr_zero(read));
    found.different = static_cast<MemberSet>(read & ~host_.same(id, read, found.reference));
  }
  const bool differs = counts && (found.different | found.unreadable) != 0;
  if (differs) {
    ++verification_.different;
    host_.differs(found);
  }
  if (differs && verification_.is_running() && verification_.repairs())
    begin_own({.kind = Kind::equal,
               .range = found.unreadable != 0 ? regions_.range_of(operation.region) : found.range,
               .region = operation.region,
               .target = kMaxMembers,
               .source = verification_.source,
               .turned = true,
               .repairs = true});
  give_up(id);
}

}  // namespace rnbd::mirror
