// SPDX-License-Identifier: BSD-3-Clause
// The requests of a path, from the immediate that announces one to its reply.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "rdma/core/server/path.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {
namespace {

bool overlap(ConstBytes a, ConstBytes b) {
  const std::less<> before;
  return !a.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace

using State = ServerRequest::State;

/// The request's chunk is taken, and is read once its key has ended, if it has one of its own.
Complaint ServerPath::on_request(Connection& connection, std::uint32_t immediate) {
  const auto where = wire::decode_request(immediate, session_.options().queue_depth);
  if (where.buffer_id >= requests_.size()) return "a request for a chunk that does not exist";
  ServerRequest& request = requests_[where.buffer_id];
  if (request.state != State::free) return "a request for a chunk whose request still executes";
  if (request.writer != 0 && request.writer != connection.cid + 1U) {
    return "a request for a chunk that another connection writes to";
  }
  request.state = State::arrived;
  request.writer = 0;
  if (!options_.new_keys) return begin(connection.cid, immediate);
  revoking_[where.buffer_id] = immediate;
  connection.queue_pair->revoke(where.buffer_id);
  return nullptr;
}

void ServerPath::expect_next(const ServerRequest& request, MutableBytes memory) {
  if (state_ != ServerPathState::connected) return;
  Connection& connection = connections_[request.cid];
  connection.end_detour();
  const std::size_t additions = session_.options().exactly_once() ? sizeof(wire::WriteTrailer) : 0;
  connection.next = {.memory = memory, .message = request.message.size() + additions};
}

MutableBytes ServerPath::Connection::detour(std::uint64_t address, std::uint32_t length,
                                            std::uint32_t immediate) {
  const bool is_request = wire::type_of(immediate) == wire::ImmediateType::io_request;
  if (next.memory.empty() || !is_request) return {};
  const auto where = wire::decode_request(immediate, path->session_.options().queue_depth);
  const std::size_t header = next.memory.size() + next.message;
  const bool as_expected = where.buffer_id < path->requests_.size() &&
                           address == path->chunks_.offset_of(where.buffer_id) &&
                           where.header_offset == header &&
                           length == header + sizeof(wire::WriteHeader);
  if (!as_expected) return {};
  next.under_way = true;
  return next.memory;
}

MutableBytes ServerPath::Connection::take_detour() {
  const Detour detour = std::exchange(next, {});
  return detour.under_way ? detour.memory : MutableBytes{};
}

void ServerPath::Connection::end_detour() {
  if (next.under_way && queue_pair != nullptr) queue_pair->end_detour();
  next = {};
}

/// Nothing of the transports refers to this memory any more.
void ServerPath::let_go(ConstBytes memory) {
  for (Connection& connection : connections_) {
    if (overlap(connection.next.memory, memory)) connection.end_detour();
    if (connection.queue_pair != nullptr) connection.queue_pair->disown_unsent_in(memory);
  }
}

Complaint ServerPath::begin(std::uint16_t cid, std::uint32_t immediate) {
  const ServerSessionOptions& options = session_.options();
  const auto where = wire::decode_request(immediate, options.queue_depth);
  ServerRequest& request = requests_[where.buffer_id];
  const MutableBytes chunk = chunks_.at(where.buffer_id);
  const MutableBytes landed = connections_[cid].take_detour();
  const auto header = wire::decode_request_header(chunk, where.header_offset);
  if (!header) return to_string(header.error());
  if (header->data_length > options.max_io_size) return "a request larger than max_io_size";
  if (header->user_length > wire::kMaxUserMessage) return "a user message longer than any we know";
  ++begun_;
  // Data other than expected belong into the chunk.
  const bool elsewhere =
      !landed.empty() && !header->is_read && header->data_length == landed.size();
  if (!elsewhere) std::ranges::copy(landed, chunk.begin());

  std::byte* message = messages_.data() + std::size_t{where.buffer_id} * wire::kMaxUserMessage;
  std::memcpy(message, chunk.data() + header->user_offset, header->user_length);
  request.message = {message, header->user_length};
  wire::WriteTrailer trailer;
  if (!header->is_read && options.exactly_once()) {
    if (header->user_length < sizeof(trailer)) return "a write without a generation";
    const std::size_t rest = header->user_length - sizeof(trailer);
    trailer = wire::copy_of<wire::WriteTrailer>(request.message.subspan(rest));
    request.message = request.message.first(rest);
  }
  // A read without a descriptor has no room for data, even if its header implies a length.
  const bool carries_data = !header->is_read || header->has_descriptor;
  request.data = chunk.first(carries_data ? header->data_length : 0);
  if (elsewhere) request.data = landed;
  request.source = nullptr;
  request.is_read = header->is_read;
  request.session = &session_;
  request.path = this;
  request.buffer_id = where.buffer_id;
  request.cid = cid;
  request.answer_to = {header->descriptor.address, header->descriptor.key};
  request.need_invalidate = header->need_invalidate && header->has_descriptor;
  ++unanswered_;
  if (request.is_read && !has_room_to_answer(request)) return nullptr;
  session_.take(request, trailer);
  return nullptr;
}

void ServerPath::end(ServerRequest& request, int error) {
  if (state_ == ServerPathState::connected) {
    reply(request, error);
    request.answer = connections_[request.cid].last_answer;
  }
  free(request);
}

void ServerPath::free(ServerRequest& request) {
  RTRS_ENSURE(unanswered_ > 0 && request.state != State::free);
  request.state = State::free;
  --unanswered_;
}

void ServerPath::drop(ServerRequest& request) {
  free(request);
  if (minds_memory()) owner_.on_memory_news();
}

void ServerPath::reply(const ServerRequest& request, int error) {
  Connection& connection = connections_[request.cid];
  QueuePair& queue_pair = *connection.queue_pair;
  const bool sends_data = request.is_read && error == 0 && !request.data.empty();
  const ConstBytes data{request.source != nullptr ? request.source : request.data.data(),
                        request.data.size()};
  const wire::ResponseImmediate response{request.buffer_id, error};
  if (!request.need_invalidate && !options_.new_keys) {
    // Plain RTRS, and half the messages of Linux: the data rides in the write that carries the
    // immediate.
    connection.last_answer =
        queue_pair.write_in_any_order(sends_data ? request.answer_to : RemoteMemory{},
                                      sends_data ? data : ConstBytes{}, {}, encode(response));
    return;
  }
  if (sends_data) queue_pair.write(request.answer_to, data);
  if (!request.need_invalidate) {
    connection.last_answer = answer(queue_pair, request.buffer_id, encode(response));
    return;
  }
  queue_pair.send_with_invalidate(request.answer_to.key);
  connection.last_answer =
      answer(queue_pair, request.buffer_id,
             encode(response, wire::ImmediateType::io_response_with_invalidate));
}

/// The immediate that ends a reply, in the way of the path's mode.
Ticket ServerPath::answer(QueuePair& queue_pair, std::uint32_t buffer_id, std::uint32_t immediate) {
  if (!options_.new_keys) return queue_pair.write_with_immediate({}, {}, {}, immediate);
  wire::RkeyMessage message;
  message.buffer_id = static_cast<std::uint16_t>(buffer_id);
  message.key = expose_chunk(queue_pair, buffer_id).key;
  return queue_pair.send_with_immediate(wire::bytes_of(message), immediate);
}

}  // namespace rtrs
