// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/lane.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/probe.hpp"

namespace rtrs {
ClientLane::ClientLane(std::uint16_t first_slot, std::uint16_t slot_count, Unresolved* unresolved,
                       Unresolved* opens)
    : first_slot_{first_slot}, order_{unresolved, opens}, slots_{slot_count}, shares_{slot_count} {
  for (unsigned i = 0; i < kMaxPaths; ++i) {
    connections_[i].lane_ = this;
    connections_[i].path_ = i;
  }
}

// ---- Requests ----------------------------------------------------------------------------------

void ClientLane::submit(Request& request) {
  RTRS_ENSURE(request.state == Request::State::idle);
  request.waits_since = DeliveryWait::kNever;
  RTRS_PROBE(rtrs, request_start, &request, request.write_data.size(), request.read_data.size());
  if (!request.fits(max_io_size_)) return request.end(*this, EMSGSIZE);
  if (down_error_ != 0) return request.end(*this, down_error_);
  const bool held_back = order_.holds_back(request, slots_);
  if (held_back && order_.refusal() != 0) return request.end(*this, order_.refusal());
  const bool held = held_back || follows_scope(request);
  const bool may_go = slots_.any_free(ways()) && waiting_.empty();
  if (may_go && !held && within_share(request)) return post(request);
  RTRS_PROBE(rtrs, permit_wait, &request);
  waiting_.push_back(request);
  resume();  // it may pass held-back requests, or has more than its share
}

/// An answered write could be undone by an older one of its owner that the owner takes for ended:
/// it may have sent that one again.
bool ClientLane::follows_scope(const Request& request) const {
  if (!request.waits_for_scope) return false;
  const Unresolved* owner = request.owner();
  return owner != nullptr && owner->writes();
}

/// A lane that keeps order is not for I/O, and its permits need not be shared.
bool ClientLane::within_share(const Request& request) const {
  return order_.kept() || shares_.within_share(request, slots_.free(ways()));
}

bool ClientLane::holds_back_owner() const {
  return waiting_.find([this](const Request& request) { return follows_scope(request); }) !=
         nullptr;
}

void ClientLane::cancel(Request& request) {
  if (request.state == Request::State::waiting) {
    waiting_.remove(request);
  } else if (request.state == Request::State::in_flight) {
    LaneSlot& slot = slots_[request.slot];
    withdraw(request);
    slot.count_in_scope();
    const SlotStep left = order_.step(slot, SlotEvent::caller_left);
    slot.request = nullptr;
    if (left.next == SlotState::free) free_slot(request.slot);
  }
  request.state = Request::State::idle;
  request.next = nullptr;
}

/// The request's connection, if it is on one, refers to nothing of it any more.
void ClientLane::withdraw(const Request& request) {
  LaneSlot& slot = slots_[request.slot];
  // The end of another request may ask for it in shut_down(), when nothing is attached.
  if (slot.state != SlotState::in_flight || !attached(slot.path)) return;
  QueuePair& queue_pair = *connections_[slot.path].link_.queue_pair;
  if (slot.exposed || !request.write_data.empty()) queue_pair.abandon(request.slot);
  if (slot.exposed) {
    queue_pair.withdraw(request.slot);
    slot.exposed = false;
  }
  if (!request.write_data.empty() && !queue_pair.is_sent(request.ticket)) {
    queue_pair.disown_unsent_in(request.write_data);
  }
}

void ClientLane::flush() {
  for (unsigned rest = choice_.attached(); rest != 0; rest &= rest - 1) {
    connections_[static_cast<unsigned>(std::countr_zero(rest))].link_.queue_pair->flush();
  }
}

void ClientLane::post(Request& request) {
  const std::uint16_t index = slots_.take(ways());
  LaneSlot& slot = slots_[index];
  slot.request = &request;
  slot.owner = request.owner();
  shares_.take(slot.owner);
  slot.direction = request.is_read ? Direction::read : Direction::write;
  if (slot.is_write()) ++slot.generation;
  slot.order = ++posted_;
  slot.wait.begin(request.waits_since);
  request.slot = index;
  request.state = Request::State::in_flight;
  transmit(index);
}

/// The waiting request that is sent next; null when all must go on waiting.
Request* ClientLane::next_to_go() const {
  const auto may_go = [this](const Request& request) { return waits_for_permit(request); };
  return order_.kept() ? waiting_.find(may_go) : shares_.next(slots_.free(ways()), may_go);
}

/// Requests that are refused need neither a permit nor a path for that.
void ClientLane::refuse_waiting() {
  while (const int refusal = order_.refusal()) {
    Request* request = waiting_.find(
        [this](const Request& waiting) { return order_.holds_back(waiting, slots_); });
    if (request == nullptr) return;
    waiting_.remove(*request);
    request->end(*this, refusal);
  }
}

void ClientLane::resume() {
  if (waiting_.empty()) return;  // as nearly always
  refuse_waiting();
  while (slots_.any_free(ways())) {
    Request* request = next_to_go();
    if (request == nullptr) return;
    waiting_.remove(*request);
    if (request->fits(max_io_size_)) {
      post(*request);
    } else {
      request->end(*this, EMSGSIZE);
    }
  }
}

// ---- Arrivals ----------------------------------------------------------------------------------

Complaint ClientLane::Connection::on_write_with_immediate(std::uint32_t immediate,
                                                          std::uint32_t bytes) {
  on_arrival();
  link_.queue_pair->post_receives(1, receive_bytes());
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::io_response:
    case wire::ImmediateType::io_response_with_invalidate: {
      if (link_.new_rkey) return "a reply without the chunk's new key";
      const auto response = wire::decode_response(immediate);
      return lane_->complete(*this, response.buffer_id, response.error, bytes);
    }
    case wire::ImmediateType::io_request:
      return "a request from a server";
    case wire::ImmediateType::heartbeat_ack:
      if (!race_.is_calm()) answer_came_ = true;
      return nullptr;
    default:
      return nullptr;  // heartbeats are the path's business; unknown kinds are ignored
  }
}

Complaint ClientLane::Connection::on_message(ConstBytes message,
                                             std::optional<std::uint32_t> immediate) {
  on_arrival();
  link_.queue_pair->post_receives(1, receive_bytes());
  if (!link_.new_rkey || !immediate) return "an unexpected message";
  const auto response = wire::decode_response(*immediate);
  const auto rkey = wire::decode_rkey_message(message, response.buffer_id);
  if (!rkey) return to_string(rkey.error());
  const std::uint32_t slot = response.buffer_id - lane_->first_slot_;
  if (slot >= lane_->slots_.count()) return "a reply for a permit of another connection";
  link_.chunks[slot].key = rkey->key;  // before the permit can be used again
  return lane_->complete(*this, response.buffer_id, response.error, 0);
}

Complaint ClientLane::complete(Connection& connection, std::uint32_t buffer_id, int error,
                               std::uint32_t bytes) {
  const std::uint32_t index = buffer_id - first_slot_;  // wraps to a large number when too small
  if (index < slots_.count() && is_late(connection, index)) {
    take_late(connection, static_cast<std::uint16_t>(index));
    return nullptr;
  }
  if (index >= slots_.count() || !slots_[index].is_on(connection.path_)) {
    return "a reply for a permit that is not in use";
  }
  LaneSlot& slot = slots_[index];
  Request* request = slot.request;
  QueuePair& queue_pair = *connection.link_.queue_pair;
  if (request != nullptr && !queue_pair.is_sent(request->ticket)) {
    return "a reply to a request that was not sent yet";
  }
  const bool data_is_missing = connection.link_.data_rides_with_reply && error == 0;
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
  choice_.answered(connection.path_);
  connection.answered_ = true;
  free_slot(static_cast<std::uint16_t>(index));
  if (request != nullptr) request->end(*this, error);
  if (moving_ != 0) move_on();
  resume();
  return nullptr;
}

void ClientLane::free_slot(std::uint16_t index) {
  LaneSlot& slot = slots_[index];
  const LaneSlot::Holds holds = std::move(slot.holds);  // until the slot is free
  const bool lets_go = slot.scope != nullptr && slot.scope->remove(slot.is_write());
  shares_.give_back(slot.owner);
  slots_.give_back(index);
  if (lets_go) order_.wake();
}

}  // namespace rtrs
