// SPDX-License-Identifier: BSD-3-Clause
// The lane when paths come and go, and the encoding of a request into bytes on one of them.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/core/client/slot_table.hpp"
#include "rdma/core/client_lane.hpp"
#include "rdma/core/plant.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// The end of a chunk, after the data: the user message and the RTRS header.
class Trailer {
 public:
  explicit Trailer(ConstBytes message) { append(message); }

  template <class T>
  void append(const T& part) {
    append(wire::bytes_of(part));
  }
  void append(ConstBytes part) {
    if (part.empty()) return;  // memcpy() takes no null
    RTRS_ENSURE(size_ + part.size() <= bytes_.size());
    std::memcpy(bytes_.data() + size_, part.data(), part.size());
    size_ += part.size();
  }
  ConstBytes bytes() const { return {bytes_.data(), size_}; }
  std::uint16_t size() const { return static_cast<std::uint16_t>(size_); }

 private:
  std::array<std::byte, QueuePair::kMaxInline> bytes_;
  std::size_t size_ = 0;
};

}  // namespace

/// Sends the request of a slot, for the first time or again. A slot without a request was cancelled
/// by its caller: only its end is asked for.
void ClientLane::transmit(std::uint16_t index, unsigned path_index) {
  Slot& slot = slots_[index];
  Path& path = paths_[path_index];
  QueuePair& queue_pair = *path.link.queue_pair;
  Request* request = slot.request;
  const wire::ChunkAddress& chunk = path.link.chunks[index];
  RemoteMemory target{chunk.address, chunk.key};
  Trailer trailer{request != nullptr ? request->message : ConstBytes{}};
  std::uint32_t data_length = 0;
  std::uint32_t user_length = 0;
  ConstBytes data;

  slot.state = SlotState::in_flight;
  slot.path = static_cast<std::uint8_t>(path_index);
  if (!slot.is_write()) {
    data_length = static_cast<std::uint32_t>(request->read_data.size());
    user_length = trailer.size();
    wire::ReadHeader header;
    header.user_length = static_cast<std::uint16_t>(user_length);
    header.descriptor_count = static_cast<std::uint16_t>(data_length > 0 ? 1 : 0);
    trailer.append(header);
    if (data_length > 0) {
      const RemoteMemory window = queue_pair.expose(index, request->read_data);
      trailer.append(wire::Descriptor{window.address, window.key, data_length});
      slot.exposed = true;
    }
    slot.expected_bytes = data_length;
    target.address += data_length;
  } else {
    if (request != nullptr) data = queue_pair.stage(index, request->write_data);
    data_length = static_cast<std::uint32_t>(data.size());
    if (path.link.exactly_once) {
      wire::WriteTrailer addition;
      addition.generation = slot.generation;
      addition.flags = request == nullptr ? wire::kSettle : std::uint16_t{0};
      trailer.append(addition);
    }
    user_length = trailer.size();
    wire::WriteHeader header;
    header.user_length = static_cast<std::uint16_t>(user_length);
    trailer.append(header);
  }

  const std::uint32_t immediate =
      encode(wire::RequestImmediate{static_cast<std::uint32_t>(first_slot_ + index),
                                    data_length + user_length},
             path.link.queue_depth);
  const Ticket ticket = queue_pair.write_with_immediate(target, data, trailer.bytes(), immediate);
  if (request != nullptr) request->ticket = ticket;
  slot.arrived = false;
  if (slot.waits_since != Instant::max()) {  // signs of life count from now on
    path.signs = 0;
    path.asked = path.acked = false;
  }
  ++path.sent;
  ++path.in_flight;
}

void ClientLane::attach(unsigned path_index, const Link& link) {
  RTRS_ENSURE(link.queue_pair != nullptr && link.chunks.size() == slot_count_);
  RTRS_ENSURE(!attached(path_index));
  Path& path = paths_[path_index];
  path.link = link;
  path.in_flight = 0;
  path.silent = path.signs = 0;
  path.asked = path.acked = false;
  path.answered = false;
  attached_ = static_cast<PathMask>(attached_ | 1U << path_index);
  exactly_once_ = link.exactly_once;
  const bool smaller = max_io_size_ == 0 || link.max_io_size < max_io_size_;
  if (smaller) max_io_size_ = link.max_io_size;  // of all paths the least
  forbid(path_index, !link.accessible);
  release(path_index);
}

void ClientLane::allow(unsigned path, bool accessible) {
  if (!attached(path)) return;
  forbid(path, !accessible);
  resend_stranded();
  start_waiting();
}

void ClientLane::forbid(unsigned path, bool forbidden) {
  const unsigned others = forbidden_ & ~(1U << path);
  forbidden_ = static_cast<PathMask>(others | static_cast<unsigned>(forbidden) << path);
  if (open() != 0) down_error_ = 0;
}

/// The server has certainly ended the earlier requests of this path.
void ClientLane::release(unsigned path) {
  for (std::uint16_t i = 0; i < slot_count_; ++i) {
    Slot& slot = slots_[i];
    if (slot.state == SlotState::quarantined && slot.path == path) {
      step(slot, SlotEvent::path_back);
    }
  }
  resend_stranded();
  start_waiting();
}

void ClientLane::detach(unsigned path, Instant now) {
  if (!attached(path)) return;
  attached_ = static_cast<PathMask>(attached_ & ~(1U << path));
  paths_[path].link = Link{};
  paths_[path].in_flight = 0;
  for (std::uint16_t i = slot_count_; i > 0; --i) {
    Slot& slot = slots_[i - 1];
    if (!on_path(slot, path)) continue;
    const bool first = slot.waits_since == Instant::max() || RTRS_PLANTED(wait_forgotten);
    if (first) slot.waits_since = now;
    if (slot.losses < kLives) ++slot.losses;
    strand(slot);
  }
  resend_stranded();
  start_waiting();
}

/// The row of the table for a slot, or one that is planted there.
SlotStep ClientLane::foresee(const Slot& slot, SlotEvent event) const {
  const Caller caller = slot.request != nullptr ? Caller::waiting : Caller::gone;
  Direction direction = slot.direction;
  Peer who = peer();
  if (event == SlotEvent::path_lost && RTRS_PLANTED(resent_without_proof)) who = Peer::own;
  if (event == SlotEvent::recovered && RTRS_PLANTED(renewed_without_proof)) who = Peer::own;
  if (event == SlotEvent::swept && RTRS_PLANTED(settle_skipped)) direction = Direction::read;
  const auto step = next_step(slot.state, event, direction, caller, who);
  RTRS_ENSURE(step.has_value());
  return *step;
}

SlotStep ClientLane::step(Slot& slot, SlotEvent event) {
  const SlotStep step = foresee(slot, event);
  slot.state = step.next;
  if (slot.state == SlotState::retry) slot.path = kNoPath;
  hold(slot, step.hold);
  return step;
}

void ClientLane::hold(Slot& slot, Hold what) {
  switch (what) {
    case Hold::nothing:
      return;
    case Hold::opens_if_close:
      if (ordered_) hold_back_opens(slot);
      return;
    case Hold::opens:
      return hold_back_opens(slot);
    case Hold::scope:
      if (ordered_ || !slot.request->waits_for_scope) hold_back_newer(slot);
      return;
    case Hold::everything:
      hold_back_newer(slot);
      return hold_back_opens(slot);
  }
}

void ClientLane::strand(Slot& slot) {
  slot.exposed = false;
  if (step(slot, SlotEvent::path_lost).action != SlotAction::requeue) return;
  // Read it again with another permit; this one is still the server's.
  Request& request = *std::exchange(slot.request, nullptr);
  request.state = Request::State::waiting;
  request.next = waiting_head_;
  waiting_head_ = &request;
  if (waiting_tail_ == nullptr) waiting_tail_ = &request;
}

void ClientLane::hold_back_newer(Slot& slot) {
  if (ordered_ && RTRS_PLANTED(close_left_behind)) return;
  slot.holds.newer.take(unresolved_);
}

/// Requests carry a device id. Linux reuses ids, so OPENs wait until this request is resolved.
void ClientLane::hold_back_opens(Slot& slot) {
  if (ordered_) return hold_back_newer(slot);
  if (!RTRS_PLANTED(write_left_behind)) slot.holds.opens.take(opens_);
}

/// Those that any path may carry, in the order of the first time. A slot is free instead if nobody
/// needs its answer.
void ClientLane::resend_stranded() {
  std::vector<std::uint16_t> again;
  for (std::uint16_t i = 0; i < slot_count_; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != SlotState::retry) continue;
    if (foresee(slot, SlotEvent::swept).next == SlotState::free) {
      free_slot(i);
    } else if (open() != 0 && !RTRS_PLANTED(stranded_forgotten)) {
      again.push_back(i);
    }
  }
  std::sort(again.begin(), again.end(),
            [&](auto a, auto b) { return slots_[a].order < slots_[b].order; });
  for (const std::uint16_t i : again) {
    if (RTRS_PLANTED(resent_as_new) && slots_[i].is_write()) ++slots_[i].generation;
    transmit(i, choose());
  }
}

void ClientLane::renew() {
  RTRS_ENSURE(!attached());
  for (std::uint16_t i = 0; i < slot_count_; ++i) {
    Slot& slot = slots_[i];
    const bool kept = slot.request != nullptr;
    slot.generation = kept && slot.is_write() ? 1 : 0;
    if (slot.state == SlotState::free) continue;
    const SlotStep done = step(slot, SlotEvent::recovered);
    if (done.next == SlotState::free) free_slot(i);
    if (done.action != SlotAction::renew || RTRS_PLANTED(renew_skipped)) continue;
    if (slot.request->renew != nullptr) slot.request->renew(*slot.request);
  }
  for (Request* request = waiting_head_; request != nullptr; request = request->next) {
    if (request->renew != nullptr) request->renew(*request);
  }
}

std::optional<std::uint16_t> ClientLane::lend_permit(unsigned path) {
  for (std::uint16_t i = 0; i < slot_count_; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state == SlotState::quarantined && slot.path != path) continue;
    lend(i, path);
    return static_cast<std::uint16_t>(first_slot_ + i);
  }
  return std::nullopt;
}

void ClientLane::lend(std::uint16_t index, unsigned path) {
  RTRS_ENSURE(!attached());
  Slot& slot = slots_[index];
  const bool was_free = slot.state == SlotState::free;
  if (step(slot, SlotEvent::lent).next != SlotState::quarantined) return;
  if (was_free) std::erase(free_, index);
  slot.path = static_cast<std::uint8_t>(path);
}

bool ClientLane::bound(unsigned path) const {
  if (RTRS_PLANTED(removed_without_proof)) return false;
  return std::ranges::any_of(slots_, [path](const Slot& slot) {
    return slot.state != SlotState::free && slot.path == path;
  });
}

void ClientLane::forget(unsigned path) {
  RTRS_ENSURE(!attached(path) && !bound(path));
  paths_[path].sent = 0;
  paths_[path].latency = {};
}

void ClientLane::end_waiting(int error) {
  while (waiting_head_ != nullptr && !RTRS_PLANTED(detach_forgets_waiting)) {
    Request* request = waiting_head_;
    waiting_head_ = request->next;
    if (waiting_head_ == nullptr) waiting_tail_ = nullptr;
    end(*request, error);
  }
}

void ClientLane::fail_pending(int error) {
  if (open() != 0) return;
  down_error_ = error;
  for (Slot& slot : slots_) {
    if (slot.is_stranded()) fail(slot, error);
  }
  resend_stranded();  // reads are over
  end_waiting(error);
}

void ClientLane::fail_stranded(unsigned path, int error) {
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::quarantined && slot.path == path) fail(slot, error);
  }
}

/// The caller is told; the server may still carry it out.
void ClientLane::fail(Slot& slot, int error) {
  if (slot.request == nullptr) return;
  step(slot, SlotEvent::failed);
  Request& request = *std::exchange(slot.request, nullptr);
  count_in_scope(slot, request);
  end(request, error);
}

void ClientLane::shut_down(int error) {
  for (Path& path : paths_) {
    path.link = Link{};
    path.in_flight = 0;
  }
  attached_ = 0;
  down_error_ = error;
  for (std::uint16_t i = 0; i < slot_count_; ++i) {
    Request* request = slots_[i].request;
    if (slots_[i].state != SlotState::free) free_slot(i);
    if (request != nullptr) end(*request, error);
  }
  end_waiting(error);
}

}  // namespace rtrs
