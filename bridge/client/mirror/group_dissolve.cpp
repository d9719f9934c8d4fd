// SPDX-License-Identifier: BSD-3-Clause
// The end of a mirror, as an operator wants it.
#include <cerrno>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror {

/// All writes are durable at all members before the first of them goes.
bool Group::dissolve(unsigned member) {
  if (!live() || dissolving_.active() || !has(in_step(), member)) return false;
  dissolving_.member = member;
  end_verify();
  dissolving_.flush = begin_own({.kind = Kind::flush});
  work();
  return true;
}

/// A view without several members at once would leave these enough for one of their own. Of the
/// last two, the other one has recorded a view with this one, and waits for it.
///
/// The member serves nobody from the order on. So it has answered all others before, and gets none
/// behind it: a refusal would look as if the mirror went on.
void Group::dissolve_next() {
  const unsigned member = dissolving_.member;
  if (!dissolving_.active() || dissolving_.asked || members_.gate_closed()) return;
  if (!has(in_step(), member)) return end_dissolve(ECANCELED);
  if (operations_.contains(dissolving_.flush)) return;
  for (unsigned i = 0; i <= members_.vote(); ++i) {
    if (i == member || members_[i].stage == Stage::down) continue;
    discard(i);
    return;  // it has come back here, or does when the view is recorded
  }
  if (in_step() != bit(member) || !operations_.empty() || !activity_.idle()) return;
  if (members_.must_rise() || members_.sent().awaits(member)) return;
  dissolving_.asked = true;
  members_.post(member, Order::dissolve, {});
}

void Group::end_dissolve(int error) {
  dissolving_ = {};
  if (error == 0) {
    members_.end();
    operations_.clear();
  }
  host_.dissolved(error);
}

}  // namespace rnbd::mirror
