// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/changes_under_way.hpp"

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd {

ChangesUnderWay::Place ChangesUnderWay::add(const Change& change) {
  if (free_.empty()) {
    free_.push_back(static_cast<Place>(changes_.size()));
    changes_.emplace_back();
  }
  const Place place = free_.back();
  free_.pop_back();
  changes_[place] = change;
  return place;
}

std::optional<ChangesUnderWay::Place> ChangesUnderWay::enter(const void* user, std::uint64_t begin,
                                                             std::uint64_t end,
                                                             const rtrs::Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  ++waiting_;
  const bool free =
      interruptible_wait(left_, lock, interrupt, [&] { return !overlaps(user, begin, end); });
  --waiting_;
  if (!free) return std::nullopt;
  return add({user, begin, end});
}

void ChangesUnderWay::leave(Place place) {
  const std::lock_guard lock{mutex_};
  changes_[place] = {};
  free_.push_back(place);
  if (waiting_ > 0) left_.notify_all();
}

}  // namespace rnbd
