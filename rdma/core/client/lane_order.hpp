// SPDX-License-Identifier: BSD-3-Clause
// The order between a lane's requests and older ones that are over for their callers only.
#pragma once

#include "rdma/core/client/lane_slots.hpp"
#include "rdma/core/client/slot.hpp"
#include "rdma/core/unresolved.hpp"

namespace rtrs {

/// Applies the table of transitions to the slots of a lane, with its consequences for newer
/// requests: which of them wait, and until when.
///
/// Invariant: as above Unresolved, for the scopes `session` and `opens` of the lane.
/// Threads:   the holder of the lane.
/// Source:    docs/architecture.md, a slot; docs/protocol.md, several paths.
class LaneOrder {
 public:
  /// As for ClientLane.
  LaneOrder(Unresolved* session, Unresolved* opens) : session_{session}, opens_{opens} {}

  /// Requests arrive in the order in which they were submitted (ClientLane::keep_order()).
  void keep() { kept_ = true; }
  bool kept() const { return kept_; }
  void set_peer(Peer peer) { peer_ = peer; }
  Peer peer() const { return peer_; }

  /// The row of the table for a slot.
  SlotStep foresee(const LaneSlot& slot, SlotEvent event) const;
  SlotStep step(LaneSlot& slot, SlotEvent event);

  /// An unresolved request of the session, or toward Linux of the lane, has to end first.
  bool holds_back(const Request& request, const LaneSlots& slots) const {
    return session_ != nullptr && session_->writes() && holds_back_now(request, slots);
  }
  /// The errno for those that are held back; 0: they wait.
  int refusal() const { return session_ != nullptr ? session_->refusal() : 0; }
  void wake() const {
    if (session_ != nullptr) session_->wake();
  }

 private:
  bool holds_back_now(const Request& request, const LaneSlots& slots) const;
  void hold(LaneSlot& slot, Hold what);
  void hold_newer(LaneSlot& slot);
  void hold_opens(LaneSlot& slot);

  Unresolved* session_;  ///< null: the lane is alone
  Unresolved* opens_;    ///< null for the lane that keeps order
  Peer peer_ = Peer::kernel;
  bool kept_ = false;
};

}  // namespace rtrs
