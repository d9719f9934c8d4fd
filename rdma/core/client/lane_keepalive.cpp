// SPDX-License-Identifier: BSD-3-Clause
// The life of a lane's connections, and the time that requests wait for one that carries them.
// Source: docs/protocol.md, heartbeats; docs/decisions, 30.
#include <algorithm>
#include <bit>
#include <utility>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// A path that can be back is back by then, and waiting requests have another try.
constexpr Duration kBackSoon = std::chrono::seconds{2};

}  // namespace

bool ClientLane::probe(unsigned path, unsigned misses_max, Instant now) {
  Connection& connection = connections_[path];
  if (!attached(path) || !connection.link_.exactly_once) return true;
  // Bytes that move are seen by nobody else where there is no race.
  note_answer(path, now);
  look_at(connection, now);
  Race& race = connection.race_;
  if (!race.on_interval(misses_max)) return false;
  // Answers to requests prove nothing: those may have come before one that did not pass.
  if (slots_.on_answered(path, race.answered())) {
    waiting_.on_arrived();  // that one's permit will be free for them
  }
  const Instant since = std::max(std::exchange(connection.probed_, now), carried_until_);
  if (race.silence() == 0 && since < now && carries(path)) {
    waiting_.put_off_waits(now - since);
    carried_until_ = now;
  }
  if (connection.mute()) {
    slots_.on_mute(path, now);
    if (slots_.all_wait()) {
      waiting_.on_mute(now, [this](const Request& request) { return waits_for_permit(request); });
    }
  }
  if (race.is_calm() && (race.silence() > 0 || slots_.any_waits_on(path))) connection.ask(now);
  return true;
}

bool ClientLane::expects_arrivals() const {
  return slots_.owing() != 0 ||
         std::ranges::any_of(connections_, [this](const Connection& connection) {
           return in_flight(connection.path_) > 0 || !connection.race_.is_calm();
         });
}

void ClientLane::Connection::ask(Instant now) {
  race_.on_asked(now);
  link_.queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
}

/// Some permit's request is under way there, or a copy of it. It is no use where it was lost each
/// time.
bool ClientLane::carries(unsigned path) const {
  for (std::size_t i = 0; i < slots_.count(); ++i) {
    const LaneSlot& slot = slots_[i];
    if (slot.is_on(path) && !slot.wait.in_vain()) return true;
    if (slot.is_stranded() && (slots_.owes(i) >> path & 1) != 0) return true;
  }
  return false;
}

/// Nothing else keeps it from being sent.
bool ClientLane::waits_for_permit(const Request& request) const {
  return !order_.holds_back(request, slots_) && !follows_scope(request);
}

void ClientLane::note_pause(Duration pause) {
  slots_.put_off_waits(pause);
  waiting_.put_off_waits(pause);
}

/// A path that answers questions owes an answer for it: the server has a copy, or will.
bool ClientLane::is_held(const LaneSlot& slot) const {
  const auto index = static_cast<std::size_t>(&slot - &slots_[0]);
  for (unsigned owing = slots_.owes(index); owing != 0; owing &= owing - 1) {
    const auto path = static_cast<unsigned>(std::countr_zero(owing));
    if (attached(path) && !connections_[path].mute()) return true;
  }
  return false;
}

/// No connection carries its request. One that is lost before it falls silent, again and again, is
/// none either.
bool ClientLane::is_stuck(const LaneSlot& slot) const {
  if (slot.is_stranded()) return !is_held(slot);
  return connections_[slot.path].mute() || slot.wait.in_vain();
}

bool ClientLane::overdue(const LaneSlot& slot, Instant limit) const {
  if (order_.peer() != Peer::own || slot.request == nullptr) return false;
  if (slot.is_stranded()) limit -= kBackSoon;
  return slot.wait.since() <= limit && is_stuck(slot);
}

/// The first of those that are. A permit whose request is carried will be free for them.
Request* ClientLane::overdue_waiting(Instant limit) const {
  if (!attached()) limit -= kBackSoon;
  if (order_.peer() != Peer::own || !slots_.all_wait()) return nullptr;
  const auto is_carried = [this](const LaneSlot& slot) { return !is_stuck(slot); };
  if (std::ranges::any_of(slots_, is_carried)) return nullptr;
  return waiting_.find([&](const Request& request) {
    return request.waits_since <= limit && waits_for_permit(request);
  });
}

bool ClientLane::overdue(Instant limit) const {
  return overdue_waiting(limit) != nullptr ||
         std::ranges::any_of(slots_, [&](const LaneSlot& slot) { return overdue(slot, limit); });
}

PathMask ClientLane::fail_overdue(Instant limit, int error) {
  unsigned mute = 0;
  while (Request* request = overdue_waiting(limit)) {
    waiting_.remove(*request);
    request->end(*this, error);
  }
  for (LaneSlot& slot : slots_) {
    if (!overdue(slot, limit)) continue;
    const bool is_mute = slot.state == SlotState::in_flight && connections_[slot.path].mute();
    if (is_mute) mute |= 1U << slot.path;
    withdraw(*slot.request);
    fail(slot, error);
  }
  resend_stranded();  // reads are over
  return static_cast<PathMask>(mute);
}

}  // namespace rtrs
