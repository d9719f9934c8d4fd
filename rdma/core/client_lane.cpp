// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client_lane.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "rdma/core/plant.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/probe.hpp"

namespace rtrs {
namespace {

const Unresolved* owner_of(const Request& request) {
  return request.scope != nullptr ? request.scope->get() : nullptr;
}

}  // namespace

ClientLane::ClientLane(std::uint16_t first_slot, std::uint16_t slot_count, Unresolved* unresolved,
                       Unresolved* opens)
    : first_slot_{first_slot},
      slot_count_{slot_count},
      unresolved_{unresolved},
      opens_{opens},
      slots_(slot_count) {
  free_.reserve(slot_count);
  for (unsigned i = slot_count; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
  for (unsigned i = 0; i < kMaxPaths; ++i) {
    paths_[i].lane = this;
    paths_[i].index = i;
  }
}

// ---- Requests ----------------------------------------------------------------------------------

bool ClientLane::fits(const Request& request) const {
  const std::size_t extra = request.is_read ? 0 : sizeof(wire::WriteTrailer);
  if (request.message.size() + extra > kMaxUserMessage) return false;
  return max_io_size_ == 0 ||
         (request.write_data.size() <= max_io_size_ && request.read_data.size() <= max_io_size_);
}

void ClientLane::submit(Request& request) {
  RTRS_ENSURE(request.state == Request::State::idle);
  request.waits_since = Instant::max();
  RTRS_PROBE(rtrs, request_start, &request, request.write_data.size(), request.read_data.size());
  if (!fits(request)) return end(request, EMSGSIZE);
  if (down_error_ != 0) return end(request, down_error_);
  if (held_back(request) && unresolved_->refusal() != 0)
    return end(request, unresolved_->refusal());
  const bool held = held_back(request) || follows_scope(request);
  const bool may_go = open() != 0 && !free_.empty() && waiting_head_ == nullptr;
  if (may_go && !held && within_share(request)) return post(request);
  enqueue(request);
  start_waiting();  // it may pass held-back requests, or has more than its share
}

/// A change could be answered and then be undone by an older one of its owner, of which that one
/// believes that it is over: he may have sent it again.
bool ClientLane::follows_scope(const Request& request) const {
  if (!request.waits_for_scope || RTRS_PLANTED(given_up_overtaken)) return false;
  const Unresolved* owner = owner_of(request);
  return owner != nullptr && owner->writes();
}

bool ClientLane::holds_back_owner() const {
  for (const Request* request = waiting_head_; request != nullptr; request = request->next) {
    if (follows_scope(*request)) return true;
  }
  return false;
}

/// Reserves the last eighth of the permits for owners that have fewer than are left. An owner whose
/// requests hang takes a part of that, and some of it remains. Counted only when permits are short.
bool ClientLane::within_share(const Request& request) const {
  if (ordered_ || free_.size() > slot_count_ / 8U) return true;
  return permits_of(owner_of(request)) < free_.size();
}

/// With those of requests that were given up.
unsigned ClientLane::permits_of(const Unresolved* owner) const {
  unsigned permits = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::free) continue;
    const Unresolved* whose = slot.request != nullptr ? owner_of(*slot.request) : slot.scope.get();
    if (whose == owner) ++permits;
  }
  return permits;
}

bool ClientLane::held_back(const Request& request) const {
  if (unresolved_ == nullptr || !unresolved_->writes()) return false;
  if (!ordered_ || peer() == Peer::own) return !request.is_read;
  return request.is_read || read_may_come_late();
}

/// The first copy of one that was sent again, or was given up: of an OPEN, in a lane that keeps
/// order.
bool ClientLane::read_may_come_late() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) {
    return slot.state == SlotState::quarantined && !slot.is_write();
  });
}

void ClientLane::enqueue(Request& request) {
  RTRS_PROBE(rtrs, permit_wait, &request);
  request.state = Request::State::waiting;
  request.next = nullptr;
  (waiting_tail_ != nullptr ? waiting_tail_->next : waiting_head_) = &request;
  waiting_tail_ = &request;
}

void ClientLane::unlink(Request& request) {
  Request* previous = nullptr;
  for (Request* r = waiting_head_; r != &request; r = r->next) previous = r;
  (previous != nullptr ? previous->next : waiting_head_) = request.next;
  if (waiting_tail_ == &request) waiting_tail_ = previous;
}

void ClientLane::cancel(Request& request) {
  if (request.state == Request::State::waiting) {
    unlink(request);
  } else if (request.state == Request::State::in_flight) {
    Slot& slot = slots_[request.slot];
    withdraw(request);
    count_in_scope(slot, request);
    const SlotStep left = step(slot, SlotEvent::caller_left);
    slot.request = nullptr;
    if (left.next == SlotState::free) free_slot(request.slot);
  }
  request.state = Request::State::idle;
  request.next = nullptr;
}

/// Its connection, if it is on one, refers to nothing of it any more.
void ClientLane::withdraw(const Request& request) {
  Slot& slot = slots_[request.slot];
  // Not when the end of another request asks for it in shut_down().
  if (slot.state != SlotState::in_flight || !attached(slot.path)) return;
  QueuePair& queue_pair = *paths_[slot.path].link.queue_pair;
  if (slot.exposed || !request.write_data.empty()) queue_pair.abandon(request.slot);
  if (slot.exposed && !RTRS_PLANTED(cancelled_window_exposed)) {
    queue_pair.withdraw(request.slot);
    slot.exposed = false;
  }
  if (!RTRS_PLANTED(cancelled_data_unowned) && !request.write_data.empty() &&
      queue_pair.sent() < request.ticket) {
    queue_pair.disown_unsent();
  }
}

/// Its end will be known when the slot is free.
void ClientLane::count_in_scope(Slot& slot, const Request& request) {
  if (request.scope == nullptr) return;
  slot.scope = *request.scope;
  slot.scope->add(slot.is_write());
}

void ClientLane::flush() {
  for (unsigned rest = attached_; rest != 0; rest &= rest - 1) {
    paths_[static_cast<unsigned>(std::countr_zero(rest))].link.queue_pair->flush();
  }
}

/// For a request that has its permit already.
unsigned ClientLane::choose() {
  if (ordered_ && permits_in_use() > 1 && attached(turn_)) return turn_;
  turn_ = choose_best();
  return turn_;
}

unsigned ClientLane::choose_best() {
  unsigned candidates = open() & in_use_;
  if (candidates == 0) candidates = open();
  auto best = static_cast<unsigned>(std::countr_zero(candidates));
  if ((candidates & (candidates - 1)) == 0) return best;
  if (policy_ == PathPolicy::round_robin) {
    const unsigned later = candidates & ~((2U << turn_) - 1);
    return later != 0 ? static_cast<unsigned>(std::countr_zero(later)) : best;
  }
  for (unsigned rest = candidates & (candidates - 1); rest != 0; rest &= rest - 1) {
    const auto path = static_cast<unsigned>(std::countr_zero(rest));
    const bool better = policy_ == PathPolicy::min_inflight
                            ? paths_[path].in_flight < paths_[best].in_flight
                            : paths_[path].latency < paths_[best].latency;
    if (better) best = path;
  }
  return best;
}

void ClientLane::post(Request& request) {
  const std::uint16_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.request = &request;
  slot.direction = request.is_read ? Direction::read : Direction::write;
  if (slot.is_write()) ++slot.generation;
  slot.order = ++posted_;
  slot.waits_since = request.waits_since;
  slot.arrivals = slot.losses = 0;
  request.slot = index;
  request.state = Request::State::in_flight;
  transmit(index, choose());
}

/// Of those that wait; null when all must go on waiting.
Request* ClientLane::next_to_go() const {
  const Request* beyond = nullptr;  // its share: its owner's others are, too
  for (Request* request = waiting_head_; request != nullptr; request = request->next) {
    if (held_back(*request)) {
      if (!ordered_) return nullptr;
    } else if (beyond == nullptr || owner_of(*request) != owner_of(*beyond)) {
      if (follows_scope(*request)) continue;
      if (within_share(*request)) return request;
      beyond = request;
    }
  }
  return nullptr;
}

Request* ClientLane::first_held_back() const {
  Request* request = waiting_head_;
  while (request != nullptr && !held_back(*request)) request = request->next;
  return request;
}

/// They need neither a permit nor a path for that.
void ClientLane::refuse_waiting() {
  if (unresolved_ == nullptr) return;
  while (const int refusal = unresolved_->refusal()) {
    Request* request = first_held_back();
    if (request == nullptr) return;
    unlink(*request);
    end(*request, refusal);
  }
}

void ClientLane::start_waiting() {
  refuse_waiting();
  while (!free_.empty() && open() != 0) {
    Request* request = next_to_go();
    if (request == nullptr) return;
    unlink(*request);
    request->next = nullptr;
    if (fits(*request)) {
      post(*request);
    } else {
      end(*request, EMSGSIZE);
    }
  }
}

void ClientLane::end(Request& request, int error) {
  request.state = Request::State::idle;
  request.next = nullptr;
  request.error = error;
  RTRS_PROBE(rtrs, request_done, &request, request.error);
  if (request.done != nullptr) request.done(*this, request);
}

// ---- Arrivals ----------------------------------------------------------------------------------

Complaint ClientLane::Path::on_write_with_immediate(std::uint32_t immediate, std::uint32_t bytes) {
  ++received;
  link.queue_pair->post_receives(1, receive_bytes());
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::io_response:
    case wire::ImmediateType::io_response_with_invalidate: {
      if (link.new_rkey) return "a reply without the chunk's new key";
      const auto response = wire::decode_response(immediate);
      return lane->complete(*this, response.buffer_id, response.error, bytes);
    }
    case wire::ImmediateType::io_request:
      return "a request from a server";
    case wire::ImmediateType::heartbeat_ack:
      acked = true;
      return nullptr;
    default:
      return nullptr;  // heartbeats are the path's business; unknown kinds are ignored
  }
}

Complaint ClientLane::Path::on_message(ConstBytes message, std::optional<std::uint32_t> immediate) {
  ++received;
  link.queue_pair->post_receives(1, receive_bytes());
  if (!link.new_rkey || !immediate) return "an unexpected message";
  const auto response = wire::decode_response(*immediate);
  const auto rkey = wire::decode_rkey_message(message, response.buffer_id);
  if (!rkey) return to_string(rkey.error());
  const std::uint32_t slot = response.buffer_id - lane->first_slot_;
  if (slot >= lane->slot_count_) return "a reply for a permit of another connection";
  if (!RTRS_PLANTED(new_key_ignored))
    link.chunks[slot].key = rkey->key;  // before the permit can be used again
  return lane->complete(*this, response.buffer_id, response.error, 0);
}

Complaint ClientLane::complete(Path& path, std::uint32_t buffer_id, int error,
                               std::uint32_t bytes) {
  const std::uint32_t index = buffer_id - first_slot_;  // wraps to a large number when too small
  if (index >= slot_count_ || slots_[index].state != SlotState::in_flight ||
      slots_[index].path != path.index) {
    return "a reply for a permit that is not in use";
  }
  Slot& slot = slots_[index];
  Request* request = slot.request;
  QueuePair& queue_pair = *path.link.queue_pair;
  if (request != nullptr && request->ticket > queue_pair.sent()) {
    return "a reply to a request that was not sent yet";
  }
  const bool data_is_missing = path.link.data_rides_with_reply && error == 0;
  if (bytes != slot.expected_bytes && (bytes != 0 || data_is_missing)) {
    return "a reply with the wrong amount of data";
  }
  if (slot.exposed) {
    if (error == 0 && !queue_pair.collect(index, slot.expected_bytes)) {
      return "a reply whose data went elsewhere";
    }
    queue_pair.withdraw(index);
  }
  if (error == EINTR) error = EIO;  // says that a caller gave up, which is not for servers to say
  --path.in_flight;
  path.answered = true;
  if (!RTRS_PLANTED(permit_lost_on_error) || error == 0) {
    free_slot(static_cast<std::uint16_t>(index));
  } else {
    slot.request = nullptr;
  }
  if (RTRS_PLANTED(waiting_request_lost) && request == nullptr) return nullptr;
  if (request != nullptr) end(*request, error);
  start_waiting();
  return nullptr;
}

void ClientLane::free_slot(std::uint16_t index) {
  Slot& slot = slots_[index];
  const std::uint32_t generation = slot.generation;
  const Holds holds = std::move(slot.holds);  // until the slot is free
  const bool counted = slot.scope != nullptr && !RTRS_PLANTED(given_up_for_ever);
  const bool lets_go = counted && slot.scope->remove(slot.is_write());
  slot = Slot{};
  slot.generation = generation;
  free_.push_back(index);
  if (lets_go && unresolved_ != nullptr) unresolved_->wake();
}

}  // namespace rtrs
