// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/lane_slots.hpp"

#include <algorithm>

namespace rtrs {

LaneSlots::LaneSlots(std::uint16_t count) : slots_(count) {
  free_.reserve(count);
  for (unsigned i = count; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
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
  return !any_free() &&
         std::ranges::all_of(slots_, [](const LaneSlot& slot) { return slot.wait.active(); });
}

void LaneSlots::on_mute(unsigned path, Instant now) {
  for (LaneSlot& slot : slots_) {
    if (slot.is_on(path)) slot.wait.on_mute(now);
  }
}

void LaneSlots::on_arrived(unsigned path) {
  for (LaneSlot& slot : slots_) {
    if (slot.is_on(path) && slot.wait.active()) slot.wait.on_arrived();
  }
}

void LaneSlots::put_off_waits(Duration pause) {
  for (LaneSlot& slot : slots_) slot.wait.put_off(pause);
}

}  // namespace rtrs
