// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/call_slots.hpp"

#include <chrono>

namespace rtrs::library {
namespace {

constexpr auto kSlice = std::chrono::milliseconds{250};

}  // namespace

CallSlots::CallSlots(unsigned count) : generations_(count) {
  free_.reserve(count);
  for (unsigned i = count; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
}

CallSlots::Taken CallSlots::take_top() {
  const std::uint16_t slot = free_.back();
  free_.pop_back();
  return {slot, ++generations_[slot], ++number_};
}

std::optional<CallSlots::Taken> CallSlots::try_take() {
  const std::lock_guard lock{mutex_};
  if (free_.empty()) return std::nullopt;
  return take_top();
}

std::optional<CallSlots::Taken> CallSlots::take(const std::function<bool()>& give_up) {
  std::unique_lock lock{mutex_};
  ++waiting_;
  while (free_.empty()) {
    if (freed_.wait_for(lock, kSlice) == std::cv_status::no_timeout) continue;
    lock.unlock();
    const bool over = give_up();
    lock.lock();
    if (over) break;
  }
  --waiting_;
  if (free_.empty()) return std::nullopt;
  return take_top();
}

void CallSlots::give_back(std::uint16_t slot) {
  const std::lock_guard lock{mutex_};
  free_.push_back(slot);
  if (waiting_ != 0) freed_.notify_one();
}

}  // namespace rtrs::library
