// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/activity.hpp"

namespace rnbd::mirror {

bool Activity::begin(const RegionMap& kept, MemberSet flushing) {
  leaving_ = hot_;
  leaving_.remove(kept);
  touched_.clear();
  if (leaving_.empty()) return false;
  step_ = Step::flushing;
  waits_for_ = flushing;
  return true;
}

bool Activity::flushed(unsigned member) {
  if (step_ != Step::flushing) return false;
  waits_for_ = without(waits_for_, member);
  if (waits_for_ != 0) return false;
  leaving_.remove(touched_);
  step_ = Step::clearing;
  return true;
}

void Activity::clear(MemberSet members) {
  waits_for_ = members;
  if (waits_for_ == 0) step_ = Step::idle;
}

bool Activity::cleared(unsigned member) {
  if (step_ != Step::clearing) return false;
  waits_for_ = without(waits_for_, member);
  if (waits_for_ != 0) return false;
  hot_.remove(leaving_);
  step_ = Step::idle;
  return true;
}

bool Activity::lost(unsigned member) {
  // An order under way elsewhere must not overtake newer changes, so that step comes to its end.
  if (step_ == Step::clearing) return cleared(member);
  step_ = Step::idle;
  waits_for_ = 0;
  return false;
}

}  // namespace rnbd::mirror
