// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/changes_under_way.hpp"

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd {

void ChangesUnderWay::add_user(const void* user) {
  const std::lock_guard lock{mutex_};
  users_.push_back(user);
  if (users_.size() == 1) alone_ = user;
  if (users_.size() == 2) state_.fetch_or(kShared);
}

/// The one that stays is alone from here on. Writes that are not listed can only be its own, since
/// the others have none any more.
void ChangesUnderWay::remove_user(const void* user) {
  const std::lock_guard lock{mutex_};
  std::erase(users_, user);
  if (users_.size() != 1) return;
  alone_ = users_.front();
  state_.fetch_and(~kShared);
}

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
  if (enter_alone()) return kAlone;
  std::unique_lock lock{mutex_};
  const Change change{user, begin, end, ++arrivals_};
  const Place place = add(change);
  ++waiting_;
  const bool free = interruptible_wait(left_, lock, interrupt, [&] { return !must_wait(change); });
  --waiting_;
  if (free) return place;
  remove(place);
  return std::nullopt;
}

/// Needs the lock.
void ChangesUnderWay::remove(Place place) {
  changes_[place] = {};
  free_.push_back(place);
  if (waiting_ > 0) left_.notify_all();
}

void ChangesUnderWay::leave_list(Place place) {
  const std::lock_guard lock{mutex_};
  remove(place);
}

/// The last write that is not listed has left a device with several users.
void ChangesUnderWay::wake() {
  const std::lock_guard lock{mutex_};
  if (waiting_ > 0) left_.notify_all();
}

PatchUnderWay::PatchUnderWay(ChangesUnderWay& changes, std::uint64_t begin, std::uint64_t end,
                             const rtrs::Interrupt& interrupt)
    : changes_{changes} {
  changes_.add_user(this);
  place_ = changes_.enter(this, begin, end, interrupt);
}

PatchUnderWay::~PatchUnderWay() {
  if (place_) changes_.leave(*place_);
  changes_.remove_user(this);
}

}  // namespace rnbd
