// SPDX-License-Identifier: BSD-3-Clause
// Keeps two users of a device from having changes of the same bytes under way.
#pragma once

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
/// rtrs::Request::given_up takes over). Among live users there is no order to lose: NBD promises
/// none for overlapping writes.
///
/// Threads: any. Memory is allocated only for more writes than ever before.
class ChangesUnderWay {
 public:
  using Place = std::uint32_t;

  /// Before a change of the bytes [begin, end). None: it overlaps another user's.
  std::optional<Place> try_enter(const void* user, std::uint64_t begin, std::uint64_t end) {
    const std::lock_guard lock{mutex_};
    if (overlaps(user, begin, end)) return std::nullopt;
    return add({user, begin, end});
  }
  /// The same for callers that may wait. None: interrupted.
  std::optional<Place> enter(const void* user, std::uint64_t begin, std::uint64_t end,
                             const rtrs::Interrupt& interrupt);
  /// It has ended, or is given up and counted as such.
  void leave(Place place);

 private:
  struct Change {
    const void* user = nullptr;
    std::uint64_t begin = 0;  ///< bytes; an empty range overlaps nothing
    std::uint64_t end = 0;
  };

  bool overlaps(const void* user, std::uint64_t begin, std::uint64_t end) const {
    for (const Change& change : changes_) {
      if (begin < change.end && change.begin < end && change.user != user) return true;
    }
    return false;
  }
  Place add(const Change& change);

  std::mutex mutex_;
  std::condition_variable left_;
  unsigned waiting_ = 0;         ///< guarded by mutex_
  std::vector<Change> changes_;  ///< by place; guarded by mutex_
  std::vector<Place> free_;      ///< guarded by mutex_
};

}  // namespace rnbd
