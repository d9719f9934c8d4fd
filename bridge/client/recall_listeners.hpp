// SPDX-License-Identifier: BSD-3-Clause
// Listeners for a server that wants mapped blocks back.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace rnbd {

/// Tells them all. A listener that was removed is not running any more.
///
/// Threads: any.
class RecallListeners {
 public:
  /// Calls `listener`, which must not block, with each recall; null ends that. `owner` tells
  /// listeners apart.
  void listen(const void* owner, std::function<void()> listener) {
    const std::lock_guard lock{mutex_};
    if (listener)
      listeners_[owner] = std::move(listener);
    else
      listeners_.erase(owner);
  }

  /// On the client's thread.
  void recall() {
    const std::lock_guard lock{mutex_};
    for (const auto& [owner, listener] : listeners_) listener();
  }

 private:
  std::mutex mutex_;                                        ///< held while listeners run
  std::map<const void*, std::function<void()>> listeners_;  ///< guarded by mutex_
};

}  // namespace rnbd
