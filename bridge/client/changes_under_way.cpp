// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/changes_under_way.hpp"

#include <algorithm>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd {

void ChangesUnderWay::add_user(const void* user) {
  const std::lock_guard lock{mutex_};
  users_.push_back(user);
  if (users_.size() == 2 && lists_.empty()) lists_.assign(kLists + 1, kNone);
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

bool ChangesUnderWay::must_wait_for_one_of(std::uint64_t list, const Change& change) const {
  for (Place at = lists_[list]; at != kNone; at = changes_[at].next) {
    const Change& other = changes_[at];
    if (other.user == change.user || other.arrival > change.arrival) continue;
    if (change.overlaps(other)) return true;
  }
  return false;
}

/// One that reaches into a region begins in there, or in the region before.
bool ChangesUnderWay::must_wait(const Change& change) const {
  if (state_.load() != kShared && change.user != alone_) return true;
  if (change.begin == change.end) return false;
  if (must_wait_for_one_of(kLong, change)) return true;
  const std::uint64_t first = change.begin >> kRegionShift;
  const std::uint64_t last = (change.end - 1) >> kRegionShift;
  const std::uint64_t from = first == 0 ? 0 : first - 1;
  const std::uint64_t count = std::min(last - from + 1, kLists);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (must_wait_for_one_of((from + i) % kLists, change)) return true;
  }
  return false;
}

ChangesUnderWay::Place ChangesUnderWay::add(Change change) {
  if (free_.empty()) {
    free_.push_back(static_cast<Place>(changes_.size()));
    changes_.emplace_back();
    free_.reserve(changes_.size());  // to leave takes no memory
  }
  const Place place = free_.back();
  free_.pop_back();
  Place& head = lists_[change.list()];
  change.next = head;
  if (head != kNone) changes_[head].previous = place;
  head = place;
  changes_[place] = change;
  return place;
}

std::optional<ChangesUnderWay::Place> ChangesUnderWay::enter(const void* user, std::uint64_t begin,
                                                             std::uint64_t end,
                                                             const rtrs::Interrupt& interrupt) {
  if (enter_alone()) return kAlone;
  std::unique_lock lock{mutex_};
  Waiter waiter{.change = {.user = user, .begin = begin, .end = end, .arrival = ++arrivals_}};
  const Place place = add(waiter.change);
  waiters_.push_back(&waiter);
  const bool free =
      interruptible_wait(waiter.left, lock, interrupt, [&] { return !must_wait(waiter.change); });
  std::erase(waiters_, &waiter);
  if (free) return place;
  remove(place);
  return std::nullopt;
}

/// Needs the lock. Only those are woken that wait for it.
void ChangesUnderWay::remove(Place place) {
  const Change gone = std::exchange(changes_[place], {});
  (gone.previous == kNone ? lists_[gone.list()] : changes_[gone.previous].next) = gone.next;
  if (gone.next != kNone) changes_[gone.next].previous = gone.previous;
  free_.push_back(place);
  for (Waiter* waiter : waiters_) {
    if (waiter->change.overlaps(gone)) waiter->left.notify_one();
  }
}

void ChangesUnderWay::leave_list(Place place) {
  const std::lock_guard lock{mutex_};
  remove(place);
}

/// The last write that is not listed has left a device with several users.
void ChangesUnderWay::wake() {
  const std::lock_guard lock{mutex_};
  for (Waiter* waiter : waiters_) waiter->left.notify_one();
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
