// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/write_gate.hpp"

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd {

void WriteGate::wake() {
  // Under the mutex: a waiter is either before its check of the state or already asleep.
  std::lock_guard lock{mutex_};
  changed_.notify_all();
}

bool WriteGate::wait_for_patch(const rtrs::Interrupt& interrupt) {
  for (;;) {
    // Take back the entry: the patch waits for it.
    leave_shared();
    {
      std::unique_lock lock{mutex_};
      if (!interruptible_wait(changed_, lock, interrupt, [this] { return !patch_inside_; }))
        return false;
    }
    if ((state_.fetch_add(1, std::memory_order_acquire) & kPatching) == 0) return true;
  }
}

bool WriteGate::enter_exclusive(const rtrs::Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  if (!interruptible_wait(changed_, lock, interrupt, [this] { return !patch_inside_; }))
    return false;
  patch_inside_ = true;
  state_.fetch_or(kPatching, std::memory_order_acq_rel);
  auto drained = [this] { return state_.load(std::memory_order_acquire) == kPatching; };
  if (interruptible_wait(changed_, lock, interrupt, drained)) return true;
  state_.fetch_and(~kPatching, std::memory_order_release);
  patch_inside_ = false;
  changed_.notify_all();
  return false;
}

void WriteGate::leave_exclusive() {
  std::lock_guard lock{mutex_};
  state_.fetch_and(~kPatching, std::memory_order_release);
  patch_inside_ = false;
  changed_.notify_all();
}

}  // namespace rnbd
