#include "rdma/core/server_session.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/core/client_lane.hpp"
#include "rdma/core/plant.hpp"
#include "rdma/core/server_path.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {

void ServerRequest::finish(int error) { session->finish(*this, error); }

wire::AcceptParameters ServerSessionOptions::accept_parameters() const {
  wire::AcceptParameters parameters;
  parameters.queue_depth = queue_depth;
  parameters.max_io_size = max_io_size;
  parameters.max_header_size = max_header_size;
  parameters.new_rkey = new_keys;
  parameters.extension = {
      .present = extension, .features = features, .session_epoch = session_epoch};
  return parameters;
}

ServerSession::ServerSession(ServerSessionOptions options, ServerHandler& handler)
    : options_{options}, handler_{handler} {
  RTRS_ENSURE(wire::fits_immediate(options.queue_depth, options.chunk_size()));
}

ServerSession::~ServerSession() { RTRS_ENSURE(executing_ == 0); }

void ServerSession::open_path(std::uint16_t cid_count) {
  path_ = std::make_unique<ServerPath>(*this, cid_count);
}

void ServerSession::up() {
  requests_.resize(options_.queue_depth);
  messages_.resize(options_.queue_depth * kMaxUserMessage);
  up_ = true;
  context = handler_.on_session_up(*this);
}

MutableBytes ServerSession::chunk(std::uint32_t buffer_id) const {
  const std::uint32_t size = options_.chunk_size();
  return chunks_.subspan(std::size_t{buffer_id} * size, size);
}

Complaint ServerSession::take(std::uint32_t immediate) {
  RTRS_ENSURE(up_ && path_->state() == ServerPathState::connected);
  const auto where = wire::decode_request(immediate, options_.queue_depth);
  if (where.buffer_id >= options_.queue_depth) return "a request for a chunk that does not exist";
  ServerRequest& request = requests_[where.buffer_id];
  if (request.taken) return "a request for a chunk whose request still executes";
  request.taken = true;
  return nullptr;
}

Complaint ServerSession::begin(std::uint16_t cid, std::uint32_t immediate) {
  const auto where = wire::decode_request(immediate, options_.queue_depth);
  ServerRequest& request = requests_[where.buffer_id];
  const MutableBytes chunk = this->chunk(where.buffer_id);
  const auto header = wire::decode_request_header(chunk, where.header_offset);
  if (!header) return to_string(header.error());
  if (header->data_length > options_.max_io_size) return "a request larger than max_io_size";
  if (header->user_length > kMaxUserMessage) return "a user message longer than any we know";

  std::byte* message = messages_.data() + std::size_t{where.buffer_id} * kMaxUserMessage;
  std::memcpy(message, chunk.data() + header->user_offset, header->user_length);
  request.message = {message, header->user_length};
  // A read without a descriptor has room for nothing, whatever length its header implies.
  const bool carries_data = !header->is_read || header->has_descriptor;
  request.data = chunk.first(carries_data ? header->data_length : 0);
  if (RTRS_PLANTED(data_offset_wrong) && !header->is_read &&
      header->data_length == options_.max_io_size) {
    request.data = chunk.subspan(8, header->data_length);
  }
  request.is_read = header->is_read;
  request.session = this;
  request.buffer_id = where.buffer_id;
  request.cid = cid;
  request.answer_to = {header->descriptor.address, header->descriptor.key};
  request.need_invalidate = header->need_invalidate && header->has_descriptor;
  request.executing = true;
  ++executing_;
  handler_.on_request(*this, request);
  return nullptr;
}

void ServerSession::finish(ServerRequest& request, int error) {
  const bool may_be_lost =
      error != 0 && !options_.extension && !request.is_read && !request.data.empty();
  if (may_be_lost && delay_answer && path_->state() == ServerPathState::connected) {
    return delay_answer(request, error);
  }
  answer(request, error);
}

void ServerSession::answer(ServerRequest& request, int error) {
  RTRS_ENSURE(request.executing && executing_ > 0);
  request.executing = false;
  request.taken = false;
  --executing_;
  if (path_->state() == ServerPathState::connected) path_->reply(request, error);
  check_gone();
}

void ServerSession::on_path_closed() {
  closed_ = true;
  check_gone();
}

void ServerSession::check_gone() {
  const bool busy = executing_ != 0 && !RTRS_PLANTED(gone_too_early);
  if (!closed_ || busy || gone_) return;
  gone_ = true;
  if (std::exchange(up_, false)) handler_.on_session_down(*this);
  if (on_gone_) on_gone_();
}

}  // namespace rtrs
