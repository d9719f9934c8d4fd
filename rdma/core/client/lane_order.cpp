// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/lane_order.hpp"

#include "rdma/core/client/slot_table.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs {

SlotStep LaneOrder::foresee(const LaneSlot& slot, SlotEvent event) const {
  const Caller caller = slot.request != nullptr ? Caller::waiting : Caller::gone;
  const auto step = next_step(slot.state, event, slot.direction, caller, peer_);
  RTRS_ENSURE(step.has_value());
  return *step;
}

SlotStep LaneOrder::step(LaneSlot& slot, SlotEvent event) {
  const SlotStep step = foresee(slot, event);
  slot.state = step.next;
  if (slot.state == SlotState::retry) slot.path = LaneSlot::kNoPath;
  hold(slot, step.hold);
  return step;
}

bool LaneOrder::holds_back_now(const Request& request, const LaneSlots& slots) const {
  if (!kept_ || peer_ == Peer::own) return !request.is_read || request.waits_for_scope;
  return request.is_read || slots.read_may_come_late();
}

void LaneOrder::hold(LaneSlot& slot, Hold what) {
  switch (what) {
    case Hold::nothing:
      return;
    case Hold::opens_if_close:
      if (kept_) hold_opens(slot);
      return;
    case Hold::opens:
      return hold_opens(slot);
    case Hold::scope:
      if (kept_ || !slot.request->waits_for_scope) hold_newer(slot);
      return;
    case Hold::everything:
      hold_newer(slot);
      return hold_opens(slot);
  }
}

void LaneOrder::hold_newer(LaneSlot& slot) { slot.holds.newer.take(session_); }

/// Requests carry a device id. Linux reuses ids, so OPENs wait until this request is resolved.
void LaneOrder::hold_opens(LaneSlot& slot) {
  if (kept_) return hold_newer(slot);
  slot.holds.opens.take(opens_);
}

}  // namespace rtrs
