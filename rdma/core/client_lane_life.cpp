// SPDX-License-Identifier: BSD-3-Clause
// Whether the connections of a lane live, and how long something waits for one that carries it.
// Source: docs/protocol.md, heartbeats; docs/decisions, 30.
#include <algorithm>

#include "rdma/core/client_lane.hpp"
#include "rdma/core/plant.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// A path that can be back is back by then, and waiting requests have another try.
constexpr Duration kBackSoon = std::chrono::seconds{2};

}  // namespace

bool ClientLane::probe(unsigned index, unsigned misses_max, Instant now) {
  Path& path = paths_[index];
  if (!attached(index) || !path.link.exactly_once || RTRS_PLANTED(lane_not_probed)) return true;
  const bool heard = std::exchange(path.received_before, path.received) != path.received;
  if (std::exchange(path.acked, false)) note_life(index);
  if (heard || path.in_flight == 0) {
    path.silent = 0;
    if (!path.asked && holds_waiting(index)) ask(path);
    return true;
  }
  if (path.silent > misses_max) return false;
  if (path.silent++ == 0) ask(path);
  if (path.mute()) note_wait(index, now);
  return true;
}

void ClientLane::ask(Path& path) {
  path.asked = true;
  path.link.queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
}

bool ClientLane::on_path(const Slot& slot, unsigned path) {
  return slot.state == SlotState::in_flight && slot.path == path;
}

/// Something is in flight on the path that was lost with others.
bool ClientLane::holds_waiting(unsigned path) const {
  return std::ranges::any_of(slots_, [path](const Slot& slot) {
    return on_path(slot, path) && slot.waits_since != Instant::max();
  });
}

/// A keepalive reply for which the connection was asked. Answers prove nothing: their requests may
/// have come before one that did not pass. After some replies the requests in flight have certainly
/// reached a slow server, and their answers are not stuck: nobody waits for a path.
void ClientLane::note_life(unsigned index) {
  constexpr unsigned kEnough = 3;
  paths_[index].asked = false;
  if (++paths_[index].signs < kEnough) return;
  for (Slot& slot : slots_) {
    if (!on_path(slot, index) || slot.waits_since == Instant::max()) continue;
    // The answer may be too large for the path, as often as slow storage gives it.
    if (!std::exchange(slot.arrived, true) && slot.arrivals <= kLives) ++slot.arrivals;
    if (slot.arrivals > kLives) continue;
    slot.losses = 0;
    slot.waits_since = Instant::max();
  }
  for (Request* r = waiting_head_; r != nullptr; r = r->next) r->waits_since = Instant::max();
}

/// Requests in flight on the path wait for a connection that carries them. So do those that wait
/// for nothing but the permits.
void ClientLane::note_wait(unsigned index, Instant now) {
  for (Slot& slot : slots_) {
    if (on_path(slot, index)) slot.waits_since = std::min(slot.waits_since, now);
  }
  if (!permits_wait()) return;
  for (Request* r = waiting_head_; r != nullptr; r = r->next) {
    if (waits_for_permit(*r)) r->waits_since = std::min(r->waits_since, now);
  }
}

/// All permits are with requests that wait for a path.
bool ClientLane::permits_wait() const {
  return free_.empty() && std::ranges::all_of(slots_, [](const Slot& slot) {
           return slot.waits_since != Instant::max();
         });
}

bool ClientLane::waits_for_permit(const Request& request) const {
  return !held_back(request) && !follows_scope(request);
}

void ClientLane::note_pause(Duration pause) {
  const auto put_off = [pause](Instant& since) {
    if (since != Instant::max()) since += pause;
  };
  for (Slot& slot : slots_) put_off(slot.waits_since);
  for (Request* r = waiting_head_; r != nullptr; r = r->next) put_off(r->waits_since);
}

bool ClientLane::overdue(const Slot& slot, Instant limit) const {
  if (peer() != Peer::own || slot.request == nullptr) return false;
  if (slot.is_stranded()) return slot.waits_since <= limit - kBackSoon;
  // A path that is lost before it falls silent, again and again, is none either.
  return slot.waits_since <= limit && (paths_[slot.path].mute() || slot.losses == kLives);
}

/// The first of those that are.
Request* ClientLane::overdue_waiting(Instant limit) const {
  if (attached_ == 0) limit -= kBackSoon;
  if (peer() != Peer::own || !permits_wait()) return nullptr;
  Request* request = waiting_head_;
  while (request != nullptr && (request->waits_since > limit || !waits_for_permit(*request))) {
    request = request->next;
  }
  return request;
}

bool ClientLane::overdue(Instant limit) const {
  return overdue_waiting(limit) != nullptr ||
         std::ranges::any_of(slots_, [&](const Slot& slot) { return overdue(slot, limit); });
}

PathMask ClientLane::fail_overdue(Instant limit, int error) {
  unsigned mute = 0;
  while (Request* request = overdue_waiting(limit)) {
    unlink(*request);
    end(*request, error);
  }
  for (Slot& slot : slots_) {
    if (!overdue(slot, limit)) continue;
    const bool is_mute = slot.state == SlotState::in_flight && paths_[slot.path].mute();
    if (is_mute) mute |= 1U << slot.path;
    withdraw(*slot.request);
    fail(slot, error);
  }
  resend_stranded();  // reads are over
  return static_cast<PathMask>(mute);
}

}  // namespace rtrs
