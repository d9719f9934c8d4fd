// SPDX-License-Identifier: BSD-3-Clause
// Makes read-modify-write of a block safe beside ordinary writes, which take no lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "rdma/client.hpp"
#include "rdma/wire/ensure.hpp"

namespace rnbd {

/// A patch reads a block, changes some bytes, and writes it back. The gate keeps it from
/// overwriting a write that another caller makes to the block meanwhile.
///
/// Writers of whole blocks only count themselves in and out. A patch announces itself, waits until
/// all writers have left, and keeps new ones out until it is done.
///
/// Threads: any.
class WriteGate {
 public:
  /// Call these before and after a write of whole blocks. False: interrupted; do not leave().
  [[nodiscard]] bool enter_shared(const rtrs::Interrupt& interrupt) {
    std::uint64_t before = state_.fetch_add(1, std::memory_order_acquire);
    if ((before & kPatching) == 0) return true;
    return wait_for_patch(interrupt);
  }
  /// The same for callers that must not wait. False: a patch is under way; do not leave().
  [[nodiscard]] bool try_enter_shared() {
    if ((state_.fetch_add(1, std::memory_order_acquire) & kPatching) == 0) return true;
    leave_shared();
    return false;
  }
  void leave_shared() {
    std::uint64_t before = state_.fetch_sub(1, std::memory_order_release);
    RTRS_ENSURE((before & ~kPatching) != 0);
    if (before == (kPatching | 1)) wake();
  }

  /// Call these around a patch. False: interrupted; do not leave.
  [[nodiscard]] bool enter_exclusive(const rtrs::Interrupt& interrupt);
  void leave_exclusive();

 private:
  static constexpr std::uint64_t kPatching = std::uint64_t{1} << 63;

  [[nodiscard]] bool wait_for_patch(const rtrs::Interrupt& interrupt);
  void wake();

  /// kPatching, and the number of writers inside. It has its own cache line, because every write
  /// changes it.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::mutex mutex_;
  std::condition_variable changed_;
  bool patch_inside_ = false;  ///< guarded by mutex_: one patch at a time
};

}  // namespace rnbd
