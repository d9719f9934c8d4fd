// SPDX-License-Identifier: BSD-3-Clause
// Keeps two users of a device from having changes of the same bytes under way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "rdma/client.hpp"

namespace rnbd {

/// The writes of a device that are in flight, each with its user.
///
/// A client that loses one of several connections sends its unanswered writes again over another
/// one. We may learn of the loss only later: until then the first copy is in flight for a user that
/// has gone. An overlapping write waits here until that copy has ended or is cancelled (then
/// rtrs::Request::scope takes over). Among live users there is no order to lose: NBD promises none
/// for overlapping writes.
///
/// Invariant: no write enters while an overlapping one of another user is inside.
///
/// A device with one user has nothing to compare, and takes no lock: its writes are only counted,
/// and all belong to that user. Each changes `state_`, and all its changes have one order. A write
/// that was counted before kShared was set is seen by every write of the second user, which waits
/// for it whatever its bytes are. A write that comes later finds kShared, and is listed.
///
/// Threads: any. Memory is allocated only for more listed writes than ever before.
class ChangesUnderWay {
 public:
  using Place = std::uint32_t;

  /// Somebody else may change the device from here on; before the first change.
  void add_user(const void* user);
  /// Behind the last change. Of a user that was not added: nothing happens.
  void remove_user(const void* user);

  /// Before a change of the bytes [begin, end). None: it may overlap another user's.
  std::optional<Place> try_enter(const void* user, std::uint64_t begin, std::uint64_t end) {
    if (enter_alone()) return kAlone;
    const std::lock_guard lock{mutex_};
    if (must_wait(user, begin, end)) return std::nullopt;
    return add({user, begin, end});
  }
  /// The same for callers that may wait. None: interrupted.
  std::optional<Place> enter(const void* user, std::uint64_t begin, std::uint64_t end,
                             const rtrs::Interrupt& interrupt);
  /// It has ended, or is given up and counted as such.
  void leave(Place place) {
    if (place == kAlone) return leave_alone();
    leave_list(place);
  }

 private:
  struct Change {
    const void* user = nullptr;
    std::uint64_t begin = 0;  ///< bytes; an empty range overlaps nothing
    std::uint64_t end = 0;
  };

  static constexpr Place kAlone = UINT32_MAX;  ///< counted, and not listed
  static constexpr std::uint64_t kShared = std::uint64_t{1} << 63;

  bool enter_alone() {
    if ((state_.load(std::memory_order_relaxed) & kShared) != 0) return false;
    if ((state_.fetch_add(1) & kShared) == 0) return true;
    leave_alone();
    return false;
  }
  void leave_alone() {
    if (state_.fetch_sub(1) == (kShared | 1)) wake();
  }
  bool must_wait(const void* user, std::uint64_t begin, std::uint64_t end) const {
    if (state_.load() != kShared && user != alone_) return true;
    for (const Change& change : changes_) {
      if (begin < change.end && change.begin < end && change.user != user) return true;
    }
    return false;
  }
  Place add(const Change& change);
  void leave_list(Place place);
  void wake();

  /// kShared: there are several users, or were when the last one came. And the number of writes
  /// that are not listed. Alone on its cache line: every write changes it.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::mutex mutex_;
  std::condition_variable left_;
  unsigned waiting_ = 0;            ///< guarded by mutex_
  std::vector<const void*> users_;  ///< guarded by mutex_
  const void* alone_ = nullptr;     ///< whose the writes are that are not listed; guarded by mutex_
  std::vector<Change> changes_;     ///< by place; guarded by mutex_
  std::vector<Place> free_;         ///< guarded by mutex_
};

}  // namespace rnbd
