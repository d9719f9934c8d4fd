#include "rdma/core/server_path.hpp"

#include <array>
#include <utility>

#include "rdma/core/plant.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// Requests and heartbeats that connection 0 may have under way beside the permits.
constexpr unsigned kControlReceives = 64;
/// Answers beside those of the permits that may wait for a client to read them.
constexpr Ticket kSpareAnswers = 1024;

}  // namespace

ServerPath::ServerPath(ServerSession& session, std::uint16_t cid_count)
    : session_{session},
      connections_(cid_count),
      heartbeat_{session.options().heartbeat_interval, session.options().heartbeat_misses} {
  for (std::uint16_t cid = 0; cid < cid_count; ++cid) {
    connections_[cid].path = this;
    connections_[cid].cid = cid;
  }
}

QueueSizes ServerPath::queue_sizes() const {
  const unsigned depth = session_.options().queue_depth;
  const unsigned keys = session_.options().new_keys ? 2U * depth : 0;
  return {3U * depth + kControlReceives, depth + kControlReceives, keys};
}

QueuePairHandler& ServerPath::add(std::uint16_t cid, QueuePair& queue_pair) {
  Connection& connection = connections_.at(cid);
  RTRS_ENSURE(connection.queue_pair == nullptr);
  connection.queue_pair = &queue_pair;
  ++present_;
  if (cid == 0) queue_pair.post_receives(1, sizeof(wire::InfoRequest));
  return connection;
}

Heartbeat::Verdict ServerPath::on_tick(Instant now) {
  if (std::exchange(heard_, false)) heartbeat_.on_traffic();
  const auto verdict = heartbeat_.on_tick(now);
  if (verdict == Heartbeat::Verdict::send) {
    connections_[0].queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
  }
  if (RTRS_PLANTED(heartbeat_never_dead)) return Heartbeat::Verdict::nothing;
  return verdict;
}

void ServerPath::close() {
  state_ = ServerPathState::closed;
  for (Connection& connection : connections_) connection.queue_pair = nullptr;
}

Complaint ServerPath::Connection::on_write_with_immediate(std::uint32_t immediate, std::uint32_t) {
  if (path->state_ != ServerPathState::connected) return "an immediate before the info request";
  const bool skip = RTRS_PLANTED(receive_not_reposted) &&
                    wire::type_of(immediate) == wire::ImmediateType::heartbeat;
  if (!skip) queue_pair->post_receives(1, 0);
  path->heard_ = true;
  // Whoever asks on without reading the answers would have us keep more and more of them.
  if (last_answer > queue_pair->sent() + path->max_unsent()) {
    return "the client does not read its answers";
  }
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::io_request:
      return path->on_request(*this, immediate);
    case wire::ImmediateType::heartbeat:
      if (cid == 0) {
        last_answer = queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeatAck);
      }
      return nullptr;
    default:
      return nullptr;  // answers to heartbeats are a sign of life only; unknown kinds are ignored
  }
}

Complaint ServerPath::Connection::on_revoked(std::uint32_t window) {
  return path->session_.begin(cid, path->revoking_[window]);
}

Complaint ServerPath::on_request(Connection& connection, std::uint32_t immediate) {
  if (const Complaint complaint = session_.take(immediate)) return complaint;
  if (!session_.options().new_keys) return session_.begin(connection.cid, immediate);
  const auto where = wire::decode_request(immediate, session_.options().queue_depth);
  revoking_[where.buffer_id] = immediate;
  connection.queue_pair->revoke(where.buffer_id);
  return nullptr;
}

Complaint ServerPath::Connection::on_message(ConstBytes message, std::optional<std::uint32_t>) {
  if (cid != 0 || path->state_ != ServerPathState::connecting) return "an unexpected message";
  return path->on_info_request(message);
}

Complaint ServerPath::on_info_request(ConstBytes message) {
  if (!complete()) return "an info request while connections are missing";
  const auto name = wire::decode_info_request(message);
  if (!name) return to_string(name.error());
  if (claim_name && !claim_name(*name)) return "the session name is in use by another client";
  if (provide_chunks && !provide_chunks()) return "no memory for the session's chunks";
  session_.name = *name;

  // The client may send as soon as it has the response, so everything is ready before.
  const auto& options = session_.options();
  for (Connection& connection : connections_) {
    connection.queue_pair->post_receives(
        options.queue_depth + (connection.cid == 0 ? kControlReceives : 1U), 0);
  }
  state_ = ServerPathState::connected;
  session_.up();
  connections_[0].queue_pair->send(wire::encode_info_response(expose_chunks()));
  return nullptr;
}

/// Static keys: all chunks are one window of every connection, known by one key. New keys: every
/// chunk is a window of its own, which belongs to the path.
std::vector<wire::Descriptor> ServerPath::expose_chunks() {
  const auto& options = session_.options();
  std::vector<wire::Descriptor> descriptors;
  if (options.new_keys) {
    revoking_.resize(options.queue_depth);
    for (std::uint32_t id = 0; id < options.queue_depth; ++id) {
      descriptors.push_back(expose_chunk(*connections_[0].queue_pair, id));
    }
    return descriptors;
  }
  RemoteMemory memory;
  for (Connection& connection : connections_) {
    memory = connection.queue_pair->expose(0, session_.chunks());
  }
  descriptors.push_back(
      {memory.address, memory.key, static_cast<std::uint32_t>(options.chunk_memory())});
  return descriptors;
}

wire::Descriptor ServerPath::expose_chunk(QueuePair& queue_pair, std::uint32_t buffer_id) {
  const RemoteMemory memory = queue_pair.expose(buffer_id, session_.chunk(buffer_id));
  return {memory.address, memory.key, session_.options().chunk_size()};
}

/// An honest client has one request per chunk, whose reply takes three posts at most.
Ticket ServerPath::max_unsent() const {
  return 3 * Ticket{session_.options().queue_depth} + kSpareAnswers;
}

void ServerPath::reply(const ServerRequest& request, int error) {
  Connection& connection = connections_[request.cid];
  QueuePair& queue_pair = *connection.queue_pair;
  const bool sends_data = request.is_read && error == 0 && !request.data.empty();
  const bool astray = RTRS_PLANTED(reply_on_wrong_slot) && error != 0;
  const wire::ResponseImmediate response{request.buffer_id ^ (astray ? 1U : 0U), error};
  if (!request.need_invalidate && !session_.options().new_keys) {
    // Plain RTRS, and half the messages of Linux: the data rides in the write that carries the
    // immediate.
    connection.last_answer = queue_pair.write_with_immediate(
        sends_data ? request.answer_to : RemoteMemory{},
        sends_data ? ConstBytes{request.data} : ConstBytes{}, {}, encode(response));
    return;
  }
  if (sends_data) queue_pair.write(request.answer_to, request.data);
  if (!request.need_invalidate) {
    connection.last_answer = answer(queue_pair, request.buffer_id, encode(response));
    return;
  }
  if (!RTRS_PLANTED(invalidate_too_late)) queue_pair.send_with_invalidate(request.answer_to.key);
  connection.last_answer =
      answer(queue_pair, request.buffer_id,
             encode(response, wire::ImmediateType::io_response_with_invalidate));
  if (RTRS_PLANTED(invalidate_too_late)) queue_pair.send_with_invalidate(request.answer_to.key);
}

/// The immediate that ends a reply, in the way of the path's mode.
Ticket ServerPath::answer(QueuePair& queue_pair, std::uint32_t buffer_id, std::uint32_t immediate) {
  if (!session_.options().new_keys) return queue_pair.write_with_immediate({}, {}, {}, immediate);
  wire::RkeyMessage message;
  message.buffer_id = static_cast<std::uint16_t>(buffer_id);
  message.key = expose_chunk(queue_pair, buffer_id).key;
  return queue_pair.send_with_immediate(wire::bytes_of(message), immediate);
}

}  // namespace rtrs
