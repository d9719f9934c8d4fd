// SPDX-License-Identifier: BSD-3-Clause
// The lane when paths come and go, and the encoding of a request into bytes on one of them.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/core/client/lane.hpp"
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

/// The paths that the request of a slot may go over now: those that it has not been on, if any. One
/// that has left a silent path takes the surest way, of whatever class, and waits only once.
unsigned ClientLane::ways_of(std::uint16_t index) const {
  const unsigned owing = slots_.owes(index);
  const unsigned been_on = slots_[index].been_on;
  const unsigned all = ways() & ~owing;
  const unsigned others = all & ~been_on;
  const unsigned fit = others != 0 ? others : all;
  return (owing | been_on) != 0 ? choice_.sure_of(fit) : fit;
}

/// Sends the request of a slot, for the first time or again. A slot without a request was cancelled
/// by its caller: only its end is asked for.
void ClientLane::transmit(std::uint16_t index) {
  LaneSlot& slot = slots_[index];
  const unsigned ways_to_go = ways_of(index);
  const unsigned path = choice_.choose(ways_to_go, order_.kept() && slots_.in_use() > 1);
  Connection& connection = connections_[path];
  const Link& link = connection.link_;
  QueuePair& queue_pair = *link.queue_pair;
  Request* request = slot.request;
  const wire::ChunkAddress& chunk = link.chunks[index];
  RemoteMemory target{chunk.address, chunk.key};
  Trailer trailer{request != nullptr ? request->message : ConstBytes{}};
  std::uint32_t data_length = 0;
  std::uint32_t user_length = 0;
  ConstBytes data;

  slot.state = SlotState::in_flight;
  slot.path = static_cast<std::uint8_t>(path);
  slot.been_on = static_cast<PathMask>(slot.been_on | 1U << path);
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
    if (link.exactly_once) {
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
             link.queue_depth);
  const Ticket ticket =
      order_.kept() ? queue_pair.write_with_immediate(target, data, trailer.bytes(), immediate)
                    : queue_pair.write_in_any_order(target, data, trailer.bytes(), immediate);
  if (request != nullptr) request->ticket = ticket;
  slot.wait.on_sent(connection.race_.asked());
  ++connection.sent_;
  choice_.sent(path);
}

void ClientLane::attach(unsigned path, const Link& link) {
  RTRS_ENSURE(link.queue_pair != nullptr && link.chunks.size() == slots_.count());
  RTRS_ENSURE(!attached(path));
  Connection& connection = connections_[path];
  connection.link_ = link;
  connection.race_.restart(connection.received_);
  connection.probed_ = Instant::max();
  connection.answer_came_ = connection.answered_ = false;
  choice_.attach(path, link.accessible);
  order_.set_peer(link.exactly_once ? Peer::own : Peer::kernel);
  const bool smaller = max_io_size_ == 0 || link.max_io_size < max_io_size_;
  if (smaller) max_io_size_ = link.max_io_size;
  for (LaneSlot& slot : slots_) {  // the server has certainly ended its earlier requests
    if (slot.is_lost_with(path)) order_.step(slot, SlotEvent::path_back);
  }
  paths_changed();
}

void ClientLane::allow(unsigned path, bool accessible) {
  if (!attached(path)) return;
  choice_.allow(path, accessible);
  paths_changed();
}

void ClientLane::detach(unsigned path, Instant now) {
  if (!attached(path)) return;
  choice_.detach(path);
  connections_[path].link_ = Link{};
  slots_.forgive(path);
  moving_ = static_cast<PathMask>(moving_ & ~(1U << path));
  for (unsigned i = slots_.count(); i > 0; --i) {
    LaneSlot& slot = slots_[i - 1];
    slot.been_on = static_cast<PathMask>(slot.been_on & ~(1U << path));
    if (!slot.is_on(path)) continue;
    slot.wait.on_lost(now);
    slot.exposed = false;
    if (order_.step(slot, SlotEvent::path_lost).action != SlotAction::requeue) continue;
    // Read it again with another permit; this one is still the server's.
    waiting_.push_front(*std::exchange(slot.request, nullptr));
  }
  paths_changed();
}

void ClientLane::paths_changed() {
  if (open() != 0) down_error_ = 0;
  resend_stranded();
  resume();
}

/// Requests that any path may carry are sent again, in the order of the first time. A slot is free
/// instead if nobody needs its answer.
void ClientLane::resend_stranded() {
  std::vector<std::uint16_t> again;
  for (std::uint16_t i = 0; i < slots_.count(); ++i) {
    const LaneSlot& slot = slots_[i];
    if (slot.state != SlotState::retry) continue;
    if (order_.foresee(slot, SlotEvent::swept).next == SlotState::free) {
      free_slot(i);
    } else if ((ways() & ~unsigned{slots_.owes(i)}) != 0) {
      again.push_back(i);
    }
  }
  std::sort(again.begin(), again.end(),
            [&](auto a, auto b) { return slots_[a].order < slots_[b].order; });
  for (const std::uint16_t i : again) transmit(i);
}

void ClientLane::renew() {
  RTRS_ENSURE(!attached());
  for (std::uint16_t i = 0; i < slots_.count(); ++i) {
    LaneSlot& slot = slots_[i];
    const bool kept = slot.request != nullptr;
    slot.generation = kept && slot.is_write() ? 1 : 0;
    if (slot.state == SlotState::free) continue;
    const SlotStep done = order_.step(slot, SlotEvent::recovered);
    if (done.next == SlotState::free) free_slot(i);
    if (done.action != SlotAction::renew) continue;
    if (slot.request->renew != nullptr) slot.request->renew(*slot.request);
  }
  for (Request& request : waiting_) {
    if (request.renew != nullptr) request.renew(request);
  }
}

std::optional<std::uint16_t> ClientLane::lend_permit(unsigned path) {
  for (std::uint16_t i = 0; i < slots_.count(); ++i) {
    LaneSlot& slot = slots_[i];
    if (slot.state == SlotState::quarantined && slot.path != path) continue;
    RTRS_ENSURE(!attached());
    const bool was_free = slot.state == SlotState::free;
    if (order_.step(slot, SlotEvent::lent).next == SlotState::quarantined) {
      if (was_free) {
        slots_.lend(i);
        shares_.take(slot.owner);
      }
      slot.path = static_cast<std::uint8_t>(path);
    }
    return static_cast<std::uint16_t>(first_slot_ + i);
  }
  return std::nullopt;
}

bool ClientLane::bound(unsigned path) const { return slots_.bound_to(path); }

void ClientLane::forget(unsigned path) {
  RTRS_ENSURE(!attached(path) && !bound(path));
  connections_[path].sent_ = connections_[path].left_ = 0;
  choice_.set_latency(path, {});
}

void ClientLane::end_waiting(int error) {
  while (!waiting_.empty()) {
    Request& request = *waiting_.front();
    waiting_.remove(request);
    request.end(*this, error);
  }
}

void ClientLane::fail_pending(int error) {
  if (open() != 0) return;
  down_error_ = error;
  for (LaneSlot& slot : slots_) {
    if (slot.is_stranded()) fail(slot, error);
  }
  resend_stranded();  // reads are over
  end_waiting(error);
}

void ClientLane::fail_stranded(unsigned path, int error) {
  for (LaneSlot& slot : slots_) {
    if (slot.is_lost_with(path)) fail(slot, error);
  }
}

/// The caller is told; the server may still carry it out.
void ClientLane::fail(LaneSlot& slot, int error) {
  if (slot.request == nullptr) return;
  order_.step(slot, SlotEvent::failed);
  slot.count_in_scope();
  std::exchange(slot.request, nullptr)->end(*this, error);
}

void ClientLane::shut_down(int error) {
  for (unsigned path = 0; path < kMaxPaths; ++path) {
    choice_.detach(path);
    connections_[path].link_ = Link{};
    slots_.forgive(path);
  }
  moving_ = 0;
  down_error_ = error;
  for (std::uint16_t i = 0; i < slots_.count(); ++i) {
    Request* request = slots_[i].request;
    if (slots_[i].state != SlotState::free) free_slot(i);
    if (request != nullptr) request->end(*this, error);
  }
  end_waiting(error);
}

}  // namespace rtrs
