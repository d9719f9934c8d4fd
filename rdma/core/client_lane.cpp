#include "rdma/core/client_lane.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include "rdma/core/plant.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// What follows the data in a chunk: the user message and the RTRS header.
class Trailer {
 public:
  explicit Trailer(ConstBytes message) { append(message); }

  template <class T>
  void append(const T& part) {
    append(wire::bytes_of(part));
  }
  void append(ConstBytes part) {
    RTRS_ENSURE(size_ + part.size() <= bytes_.size());
    std::memcpy(bytes_.data() + size_, part.data(), part.size());
    size_ += part.size();
  }
  ConstBytes bytes() const { return {bytes_.data(), size_}; }

 private:
  std::array<std::byte, QueuePair::kMaxInline> bytes_;
  std::size_t size_ = 0;
};

}  // namespace

ClientLane::ClientLane(std::uint16_t first_slot, std::uint16_t slot_count)
    : first_slot_{first_slot}, slot_count_{slot_count}, slots_(slot_count) {
  free_.reserve(slot_count);
  for (unsigned i = slot_count; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
}

void ClientLane::attach(const Link& link) {
  RTRS_ENSURE(link.queue_pair != nullptr && link.chunks.size() == slot_count_);
  link_ = link;
  down_error_ = 0;
  start_waiting();
}

void ClientLane::detach(int error) {
  link_ = Link{};
  down_error_ = error;
  free_.clear();
  for (unsigned i = slot_count_; i > 0; --i) {
    Slot& slot = slots_[i - 1];
    Request* request = slot.request;
    slot = Slot{};
    free_.push_back(static_cast<std::uint16_t>(i - 1));
    if (request != nullptr) end(*request, error);
  }
  while (waiting_head_ != nullptr && !RTRS_PLANTED(detach_forgets_waiting)) {
    Request* request = waiting_head_;
    waiting_head_ = request->next;
    if (waiting_head_ == nullptr) waiting_tail_ = nullptr;
    end(*request, error);
  }
}

void ClientLane::submit(Request& request) {
  RTRS_ENSURE(request.state == Request::State::idle);
  const bool fits =
      request.message.size() <= kMaxUserMessage &&
      (link_.queue_pair == nullptr || (request.write_data.size() <= link_.max_io_size &&
                                       request.read_data.size() <= link_.max_io_size));
  if (!fits) return end(request, EMSGSIZE);
  if (down_error_ != 0) return end(request, down_error_);
  if (link_.queue_pair != nullptr && !free_.empty() && waiting_head_ == nullptr) {
    return post(request);
  }
  request.state = Request::State::waiting;
  request.next = nullptr;
  (waiting_tail_ != nullptr ? waiting_tail_->next : waiting_head_) = &request;
  waiting_tail_ = &request;
}

void ClientLane::cancel(Request& request) {
  if (request.state == Request::State::waiting) {
    Request* previous = nullptr;
    for (Request* r = waiting_head_; r != &request; r = r->next) previous = r;
    (previous != nullptr ? previous->next : waiting_head_) = request.next;
    if (waiting_tail_ == &request) waiting_tail_ = previous;
  } else if (request.state == Request::State::in_flight) {
    Slot& slot = slots_[request.slot];
    const bool usable = attached();  // not when another request's done() asks during detach()
    if (usable && slot.exposed && !RTRS_PLANTED(cancelled_window_exposed)) {
      link_.queue_pair->withdraw(request.slot);
      slot.exposed = false;
    }
    if (usable && !RTRS_PLANTED(cancelled_data_unowned) && !request.write_data.empty() &&
        link_.queue_pair->sent() < request.ticket) {
      link_.queue_pair->disown_unsent();
    }
    slot.request = nullptr;
  }
  request.state = Request::State::idle;
  request.next = nullptr;
}

void ClientLane::flush() {
  if (link_.queue_pair != nullptr) link_.queue_pair->flush();
}

void ClientLane::post(Request& request) {
  const std::uint16_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  const wire::ChunkAddress& chunk = link_.chunks[index];
  const auto data_length = static_cast<std::uint32_t>(request.is_read ? request.read_data.size()
                                                                      : request.write_data.size());
  const auto user_length = static_cast<std::uint16_t>(request.message.size());

  Trailer trailer{request.message};
  RemoteMemory target{chunk.address, chunk.key};
  if (request.is_read) {
    wire::ReadHeader header;
    header.user_length = user_length;
    header.descriptor_count = static_cast<std::uint16_t>(data_length > 0 ? 1 : 0);
    trailer.append(header);
    if (data_length > 0) {
      const RemoteMemory window = link_.queue_pair->expose(index, request.read_data);
      trailer.append(wire::Descriptor{window.address, window.key, data_length});
      slot.exposed = true;
    }
    target.address += data_length;
  } else {
    wire::WriteHeader header;
    header.user_length = user_length;
    trailer.append(header);
  }

  slot.request = &request;
  slot.in_flight = true;
  slot.expected_bytes = request.is_read ? data_length : 0;
  request.slot = index;
  request.state = Request::State::in_flight;
  const std::uint32_t immediate =
      encode(wire::RequestImmediate{static_cast<std::uint32_t>(first_slot_ + index),
                                    data_length + user_length},
             link_.queue_depth);
  const ConstBytes data =
      request.is_read ? ConstBytes{} : link_.queue_pair->stage(index, request.write_data);
  request.ticket = link_.queue_pair->write_with_immediate(target, data, trailer.bytes(), immediate);
}

Complaint ClientLane::on_write_with_immediate(std::uint32_t immediate, std::uint32_t bytes) {
  ++received_;
  link_.queue_pair->post_receives(1, receive_bytes());
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::io_response:
    case wire::ImmediateType::io_response_with_invalidate: {
      if (link_.new_rkey) return "a reply without the chunk's new key";
      const auto response = wire::decode_response(immediate);
      return complete(response.buffer_id, response.error, bytes);
    }
    case wire::ImmediateType::io_request:
      return "a request from a server";
    default:
      return nullptr;  // heartbeats are the path's business; unknown kinds are ignored
  }
}

Complaint ClientLane::on_message(ConstBytes message, std::optional<std::uint32_t> immediate) {
  ++received_;
  link_.queue_pair->post_receives(1, receive_bytes());
  if (!link_.new_rkey || !immediate) return "an unexpected message";
  const auto response = wire::decode_response(*immediate);
  const auto rkey = wire::decode_rkey_message(message, response.buffer_id);
  if (!rkey) return to_string(rkey.error());
  const std::uint32_t index = response.buffer_id - first_slot_;
  if (index >= slot_count_) return "a reply for a permit of another connection";
  if (!RTRS_PLANTED(new_key_ignored))
    link_.chunks[index].key = rkey->key;  // before the permit can be used again
  return complete(response.buffer_id, response.error, 0);
}

Complaint ClientLane::complete(std::uint32_t buffer_id, int error, std::uint32_t bytes) {
  const std::uint32_t index = buffer_id - first_slot_;  // wraps to a large number when too small
  if (index >= slot_count_ || !slots_[index].in_flight) {
    return "a reply for a permit that is not in use";
  }
  Slot& slot = slots_[index];
  Request* request = slot.request;
  if (request != nullptr && request->ticket > link_.queue_pair->sent()) {
    return "a reply to a request that was not sent yet";
  }
  const bool data_is_missing = link_.data_rides_with_reply && error == 0;
  if (bytes != slot.expected_bytes && (bytes != 0 || data_is_missing)) {
    return "a reply with the wrong amount of data";
  }
  if (slot.exposed) {
    if (error == 0) link_.queue_pair->collect(index, slot.expected_bytes);
    link_.queue_pair->withdraw(index);
  }
  slot = Slot{};
  if (!RTRS_PLANTED(permit_lost_on_error) || error == 0) {
    free_.push_back(static_cast<std::uint16_t>(index));
  }
  if (RTRS_PLANTED(waiting_request_lost) && request == nullptr) return nullptr;
  if (request != nullptr) end(*request, error);
  start_waiting();
  return nullptr;
}

void ClientLane::start_waiting() {
  while (waiting_head_ != nullptr && !free_.empty() && link_.queue_pair != nullptr) {
    Request* request = waiting_head_;
    waiting_head_ = request->next;
    if (waiting_head_ == nullptr) waiting_tail_ = nullptr;
    request->next = nullptr;
    if (request->write_data.size() > link_.max_io_size ||
        request->read_data.size() > link_.max_io_size) {
      end(*request, EMSGSIZE);
    } else {
      post(*request);
    }
  }
}

void ClientLane::end(Request& request, int error) {
  request.state = Request::State::idle;
  request.next = nullptr;
  request.error = error;
  if (request.done != nullptr) request.done(*this, request);
}

}  // namespace rtrs
