// SPDX-License-Identifier: BSD-3-Clause
// The way into a mirror's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "bridge/client/mirror/call.hpp"

namespace rnbd::mirror {

/// Hands requests of lanes and functions to the mirror's thread, and wakes it up once for all that
/// comes together.
///
/// Threads: any; descriptor() and take() are for the mirror's.
class MirrorDoor {
 public:
  /// Errors: std::system_error.
  MirrorDoor();
  ~MirrorDoor();
  MirrorDoor(const MirrorDoor&) = delete;
  MirrorDoor& operator=(const MirrorDoor&) = delete;

  void post(std::function<void()> function);
  void arrive(MirrorLane& lane, const std::vector<rtrs::LaneLoop::Job*>& jobs);
  /// The number of the newest request of a lane.
  std::uint64_t newest() const;

  /// Readable when there is something to take.
  int descriptor() const { return wake_; }
  /// All that came since the last time. Both are empty before.
  void take(std::vector<CallPtr>& calls, std::vector<std::function<void()>>& functions);

 private:
  void wake_up();

  int wake_;  ///< eventfd
  mutable std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  ///< guarded by mutex_, as all below
  std::vector<CallPtr> arrived_;               ///< from lanes
  std::uint64_t arrivals_ = 0;                 ///< number of the newest of them
  bool woken_ = false;                         ///< since the thread looked
};

}  // namespace rnbd::mirror
