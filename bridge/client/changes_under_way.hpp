// SPDX-License-Identifier: BSD-3-Clause
// Makes a write wait while another user's write, or a patch, of the same bytes is under way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "rdma/client.hpp"

namespace rnbd {

/// The writes of a device that are in flight, or wait here for others, each with its user.
///
/// A client that loses one of several connections repeats its unanswered writes on another one.
/// This program may notice the loss later, so the first copy may still be in flight for the old
/// user. An overlapping write waits here until that copy has ended or is cancelled (then
/// rtrs::Request::scope takes over). NBD promises no order of overlapping writes. Those of
/// different users go in the order of their arrival, so that no stream of later ones keeps one
/// waiting.
///
/// A write of a part of a block reads the block first, and must see every write that is answered
/// meanwhile. So it counts as a user of its own, see PatchUnderWay.
///
/// Invariant: no write enters while an overlapping one of another user is inside.
///
/// A device with one user takes no lock: its writes are only counted, in `state_`. All changes of
/// `state_` have one order. If a write was counted before kShared was set, every write of the
/// second user sees that and waits, even if the bytes differ. A later write finds kShared and is
/// listed with its range.
///
/// A listed write is found by the region in which it begins, so that many writes at other places
/// cost nothing. One that is longer than a region stands in a list of its own.
///
/// Threads: any. It allocates memory only when there are more users, or more writes are listed,
///          than ever before.
class ChangesUnderWay {
 public:
  using Place = std::uint32_t;

  /// Adds a user, before its first write.
  void add_user(const void* user);
  /// Removes a user, after its last write. Ignores a user that was not added.
  void remove_user(const void* user);

  /// Call it before a write to the bytes [begin, end). None: the write may overlap another user's.
  std::optional<Place> try_enter(const void* user, std::uint64_t begin, std::uint64_t end) {
    if (enter_alone()) return kAlone;
    const std::lock_guard lock{mutex_};
    const Change change{.user = user, .begin = begin, .end = end, .arrival = ++arrivals_};
    if (must_wait(change)) return std::nullopt;
    return add(change);
  }
  /// The same for callers that can wait. Meanwhile later ones that overlap wait for this one,
  /// unless their user is the same. None: interrupted.
  std::optional<Place> enter(const void* user, std::uint64_t begin, std::uint64_t end,
                             const rtrs::Interrupt& interrupt);
  /// The write has ended, or is cancelled and counted as such.
  void leave(Place place) {
    if (place == kAlone) return leave_alone();
    leave_list(place);
  }

 private:
  static constexpr Place kAlone = UINT32_MAX;  ///< counted, but not listed
  static constexpr Place kNone = UINT32_MAX;
  static constexpr std::uint64_t kShared = std::uint64_t{1} << 63;
  static constexpr unsigned kRegionShift = 17;  ///< 128 KiB
  static constexpr std::uint64_t kLists = 1024;
  static constexpr std::uint64_t kLong = kLists;  ///< the list of those longer than a region

  struct Change {
    const void* user = nullptr;
    std::uint64_t begin = 0;  ///< bytes; an empty range overlaps nothing
    std::uint64_t end = 0;
    std::uint64_t arrival = 0;
    Place next = kNone;  ///< in its list
    Place previous = kNone;

    bool overlaps(const Change& other) const { return begin < other.end && other.begin < end; }
    std::uint64_t list() const {
      return end - begin > (std::uint64_t{1} << kRegionShift) ? kLong
                                                              : (begin >> kRegionShift) % kLists;
    }
  };
  struct Waiter {
    Change change;
    std::condition_variable left{};
  };

  bool enter_alone() {
    if ((state_.load(std::memory_order_relaxed) & kShared) != 0) return false;
    if ((state_.fetch_add(1) & kShared) == 0) return true;
    leave_alone();
    return false;
  }
  void leave_alone() {
    if (state_.fetch_sub(1) == (kShared | 1)) wake();
  }
  bool must_wait(const Change& change) const;
  bool must_wait_for_one_of(std::uint64_t list, const Change& change) const;
  Place add(Change change);
  void remove(Place place);
  void leave_list(Place place);
  void wake();

  /// The number of unlisted writes, and kShared: there are several users, or were when the last one
  /// came. It has its own cache line, because every write changes it.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::mutex mutex_;
  std::vector<Waiter*> waiters_;    ///< guarded by mutex_
  std::vector<const void*> users_;  ///< guarded by mutex_
  const void* alone_ = nullptr;     ///< the user of the unlisted writes; guarded by mutex_
  std::uint64_t arrivals_ = 0;      ///< guarded by mutex_
  std::vector<Change> changes_;     ///< by place; guarded by mutex_
  std::vector<Place> free_;         ///< guarded by mutex_
  std::vector<Place> lists_;        ///< the newest change of each, see list(); guarded by mutex_
};

/// A patch: a block is read, changed in a part, and written back. Until it has ended, no other
/// change of the block enters, not even one of the same NBD client. Changes of other blocks go on.
///
/// Threads: each patch has one.
class PatchUnderWay {
 public:
  /// Waits for older changes of the block [begin, end), and for all older ones that are not listed:
  /// nobody knows their bytes. Later changes of the block wait meanwhile.
  PatchUnderWay(ChangesUnderWay& changes, std::uint64_t begin, std::uint64_t end,
                const rtrs::Interrupt& interrupt);
  ~PatchUnderWay();
  PatchUnderWay(const PatchUnderWay&) = delete;
  PatchUnderWay& operator=(const PatchUnderWay&) = delete;

  /// False: interrupted.
  bool entered() const { return place_.has_value(); }

 private:
  ChangesUnderWay& changes_;
  std::optional<ChangesUnderWay::Place> place_;
};

}  // namespace rnbd
