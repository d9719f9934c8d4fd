// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/lane_slots.hpp"

#include <algorithm>

namespace rtrs {

LaneSlots::LaneSlots(std::uint16_t count) : slots_(count), owes_(count) {
  free_.reserve(count);
  owing_.reserve(count);
  for (unsigned i = count; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
}

std::size_t LaneSlots::free(unsigned ways) const {
  const auto usable = [&](std::uint16_t index) { return (ways & ~unsigned{owes_[index]}) != 0; };
  return free_.size() + static_cast<std::size_t>(std::ranges::count_if(owing_, usable));
}

std::uint16_t LaneSlots::take(unsigned ways) {
  if (!free_.empty()) {
    const std::uint16_t index = free_.back();
    free_.pop_back();
    return index;
  }
  const auto found = std::ranges::find_if(
      owing_, [&](std::uint16_t i) { return (ways & ~unsigned{owes_[i]}) != 0; });
  const std::uint16_t index = *found;
  owing_.erase(found);
  return index;
}

bool LaneSlots::settle(std::uint16_t index, unsigned path) {
  if ((owes_[index] >> path & 1) == 0) return false;
  owes_[index] = static_cast<PathMask>(owes_[index] & ~(1U << path));
  if (owes_[index] == 0 && std::erase(owing_, index) != 0) free_.push_back(index);
  return true;
}

void LaneSlots::forgive(unsigned path) {
  for (std::size_t i = 0; i < slots_.size(); ++i) settle(static_cast<std::uint16_t>(i), path);
}

std::size_t LaneSlots::bytes_moved() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (owes_[i] != 0 && slots_[i].state == SlotState::in_flight) bytes += slots_[i].bytes();
  }
  return bytes;
}

bool LaneSlots::bound_to(unsigned path) const {
  return std::ranges::any_of(slots_, [path](const LaneSlot& slot) {
    return slot.state != SlotState::free && slot.path == path;
  });
}

bool LaneSlots::read_may_come_late() const {
  return std::ranges::any_of(slots_, [](const LaneSlot& slot) {
    return slot.state == SlotState::quarantined && !slot.is_write();
  });
}

bool LaneSlots::any_waits_on(unsigned path) const {
  return std::ranges::any_of(
      slots_, [path](const LaneSlot& slot) { return slot.is_on(path) && slot.wait.active(); });
}

bool LaneSlots::all_wait() const {
  return free_.empty() && owing_.empty() &&
         std::ranges::all_of(slots_, [](const LaneSlot& slot) { return slot.wait.active(); });
}

void LaneSlots::on_mute(unsigned path, Instant now) {
  for (LaneSlot& slot : slots_) {
    if (slot.is_on(path)) slot.wait.on_mute(now);
  }
}

bool LaneSlots::on_answered(unsigned path, std::uint64_t answered) {
  bool any = false;
  for (LaneSlot& slot : slots_) {
    if (slot.is_on(path) && slot.wait.on_answered(answered)) any = true;
  }
  return any;
}

void LaneSlots::put_off_waits(Duration pause) {
  for (LaneSlot& slot : slots_) slot.wait.put_off(pause);
}

}  // namespace rtrs
