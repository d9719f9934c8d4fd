// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/slot.hpp"

#include <algorithm>
#include <cerrno>

#include "rdma/core/plant.hpp"

namespace rtrs {

SlotVerdict judge(ServerSlot& slot, std::uint32_t generation, bool settle) {
  if (!slot.used || wire::is_newer(generation, slot.generation)) {
    if (slot.executing != nullptr) return SlotVerdict::forbidden;
    slot.used = true;
    slot.generation = generation;
    if (!settle || RTRS_PLANTED(settle_executes)) return SlotVerdict::execute;
    slot.status = ECANCELED;
    return SlotVerdict::answer;
  }
  if (generation != slot.generation) {
    return RTRS_PLANTED(stale_executed) ? SlotVerdict::execute : SlotVerdict::drop;
  }
  if (slot.executing != nullptr) {
    return RTRS_PLANTED(no_attach) ? SlotVerdict::execute : SlotVerdict::attach;
  }
  return RTRS_PLANTED(no_dedup) ? SlotVerdict::execute : SlotVerdict::answer;
}

SlotVerdict judge_resent(const ServerSlot& slot, const ServerRequest& request) {
  if (slot.executing == nullptr || RTRS_PLANTED(linux_replay_executed)) return SlotVerdict::execute;
  const ServerRequest& first = *slot.executing;
  const bool same = std::ranges::equal(first.message, request.message) &&
                    std::ranges::equal(first.data, request.data);
  return same ? SlotVerdict::attach : SlotVerdict::follow;
}

void stop_waiting(ServerSlot& slot, const ServerRequest& request) {
  ServerRequest** place = &slot.waiting;
  while (*place != nullptr && *place != &request) place = &(*place)->next;
  if (*place != nullptr) *place = request.next;
}

}  // namespace rtrs
