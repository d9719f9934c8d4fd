// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/slot.hpp"

#include <algorithm>
#include <cerrno>

namespace rtrs {

SlotVerdict judge(ServerSlot& slot, std::uint32_t generation, bool settle) {
  if (!slot.used || wire::is_newer(generation, slot.generation)) {
    if (slot.executing != nullptr) return SlotVerdict::forbidden;
    slot.used = true;
    slot.generation = generation;
    if (!settle) return SlotVerdict::execute;
    slot.status = ECANCELED;
    return SlotVerdict::answer;
  }
  if (generation != slot.generation) return SlotVerdict::answer_older;
  return slot.executing != nullptr ? SlotVerdict::attach : SlotVerdict::answer;
}

SlotVerdict judge_resent(const ServerSlot& slot, const ServerRequest& request) {
  if (slot.executing == nullptr) return SlotVerdict::execute;
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
