// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/path.hpp"

#include <array>
#include <utility>

#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {
namespace {

/// Requests and heartbeats that connection 0 may have under way beside the permits.
constexpr unsigned kServerControlReceives = 64;
/// The limits that a memory path grants: the least that there are, and not used.
constexpr std::uint32_t kMemoryPathIoSize = wire::kMinMaxIoSize;
constexpr std::uint32_t kMemoryPathHeaderSize = 4096 - kMemoryPathIoSize;
/// Answers beside those of the permits that may wait for a client to read them.
constexpr Ticket kSpareAnswers = 1024;

/// An honest client has one request per chunk, and a reply takes three posts at most.
Ticket max_unsent_answers(const ServerPathOptions& path, const ServerSessionOptions& session) {
  const bool has_requests = path.kind != wire::PathKind::memory;
  return 3 * Ticket{has_requests ? session.queue_depth : 1U} + kSpareAnswers;
}

}  // namespace

ServerPath::ServerPath(ServerSession& session, ServerPathOwner& owner, ServerPathOptions options)
    : session_{session},
      owner_{owner},
      options_{options},
      notices_{options.access, /*understood=*/session.options().extension},
      max_unsent_{max_unsent_answers(options, session.options())},
      connections_(options.cid_count),
      proofs_{options.cid_count, options.keys},
      chunks_{session.options().chunk_size()},
      loan_{owner, options.account, options.floor, session.options().queue_depth},
      heartbeat_{options.heartbeat_interval, options.heartbeat_misses,
                 Heartbeat::Asks::in_silence} {
  for (std::uint16_t cid = 0; cid < options.cid_count; ++cid) {
    connections_[cid].path = this;
    connections_[cid].cid = cid;
  }
  session_.join(*this);
}

ServerPath::~ServerPath() {
  RTRS_ENSURE(executing_ == 0);
  stop_starving();
  session_.leave(*this);
}

wire::AcceptParameters ServerPath::accept_parameters() const {
  const ServerSessionOptions& session = session_.options();
  wire::AcceptParameters parameters;
  parameters.queue_depth = session.queue_depth;
  parameters.max_io_size = session.max_io_size;
  parameters.max_header_size = session.max_header_size;
  parameters.new_rkey = options_.new_keys;
  if (is_memory()) {
    parameters.queue_depth = 1;
    parameters.max_io_size = kMemoryPathIoSize;
    parameters.max_header_size = kMemoryPathHeaderSize;
  }
  std::uint32_t features = session.features;
  if (!proofs_.needed()) features &= ~std::uint32_t{wire::kFeatureAuthentication};
  parameters.extension = {session.extension,      features,        session.session_epoch,
                          session.volatile_epoch, options_.access, session.server_id};
  return parameters;
}

QueueSizes ServerPath::queue_sizes() const {
  if (is_memory()) {
    return {.sends = kServerControlReceives, .receives = kServerControlReceives, .regions = true};
  }
  const unsigned depth = session_.options().queue_depth;
  const unsigned keys = options_.new_keys ? 2U * depth : 0;  // far fewer for the proof before
  return {3U * depth + kServerControlReceives, depth + kServerControlReceives, keys};
}

QueuePairHandler& ServerPath::add(std::uint16_t cid, QueuePair& queue_pair,
                                  const wire::ConnectRequest& request) {
  Connection& connection = connections_.at(cid);
  RTRS_ENSURE(connection.queue_pair == nullptr);
  connection.queue_pair = &queue_pair;
  ++present_;
  if (proofs_.needed()) {
    proofs_.start(cid, queue_pair,
                  {.request = request, .response = wire::encode(accept_parameters())});
  }
  if (cid == 0) queue_pair.post_receives(1, sizeof(wire::InfoRequest));
  return connection;
}

Heartbeat::Verdict ServerPath::on_tick(Instant now) {
  if (loan_.limited() && state_ == ServerPathState::connected) give_back_when_idle(now);
  // A client is not silent for what this end does not read.
  if (std::exchange(heard_, false) || starves(0)) heartbeat_.on_traffic();
  const auto verdict = heartbeat_.on_tick(now);
  if (verdict == Heartbeat::Verdict::send) {
    connections_[0].queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
  }
  return verdict;
}

void ServerPath::set_access(wire::PathAccess access) {
  notices_.set_access(access);
  send_access();
}

void ServerPath::send_access() {
  if (is_memory() || !session_.options().tells_access() || state_ != ServerPathState::connected)
    return;
  if (const auto notice = notices_.next_access()) {
    connections_[0].queue_pair->write_with_immediate({}, {}, {}, *notice);
  }
}

bool ServerPath::may_recall() const {
  return !is_memory() && state_ == ServerPathState::connected && !notices_.recall_unanswered();
}

void ServerPath::send_recall(std::uint32_t count) {
  connections_[0].queue_pair->write_with_immediate({}, {}, {}, notices_.send_recall(count));
}

void ServerPath::close() {
  if (state_ == ServerPathState::closed) return;
  state_ = ServerPathState::closed;
  stop_starving();
  for (Connection& connection : connections_) {
    connection.end_detour();
    connection.queue_pair = nullptr;
  }
  for (ServerRequest& request : requests_) {
    if (request.state == ServerRequest::State::attached ||
        request.state == ServerRequest::State::following) {
      stop_waiting(session_.slots_[request.buffer_id], request);
    } else if (request.state == ServerRequest::State::pending) {
      session_.forget_pending(request);
    } else if (request.state != ServerRequest::State::starved) {
      continue;
    }
    free(request);
  }
}

void ServerPath::fence(const char* why, bool fault) {
  if (state_ == ServerPathState::closed) return;
  close();
  owner_.on_fenced(why, fault);
}

/// The driver has closed it: only executing requests write to the chunks any more.
void ServerPath::release() {
  released_ = true;
  if (executing_ != 0) {
    owner_.on_unused(chunks_.unused(requests_), PathChunks::held(requests_));
  }
  loan_.end();  // nothing wakes it any more
  check_gone();
}

void ServerPath::give_back(const ServerRequest& ended) {
  if (!released_ || executing_ == 0) return;
  const MutableBytes unused = chunks_.at(ended.buffer_id);
  owner_.on_unused({&unused, 1}, PathChunks::held(requests_));
}

void ServerPath::check_gone() {
  if (gone_ || !released_ || executing_ != 0) return;
  gone_ = true;
  owner_.on_gone();
}

Complaint ServerPath::Connection::on_write_with_immediate(std::uint32_t immediate, std::uint32_t) {
  if (path->state_ == ServerPathState::closed) return nullptr;  // fenced; the driver closes soon
  if (path->state_ != ServerPathState::connected) return "an immediate before the info request";
  queue_pair->post_receives(1, 0);
  path->heard_ = true;
  // A client that asks on without reading the answers would have us keep more and more of them.
  if (last_answer > queue_pair->sent() + path->max_unsent_) {
    return "the client does not read its answers";
  }
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::io_request:
      if (path->is_memory()) return "a request on a memory path";
      return path->on_request(*this, immediate);
    case wire::ImmediateType::heartbeat:
      // On the others a client asks whether they still carry anything.
      if (cid == 0 || path->session_.options().exactly_once()) {
        last_answer = queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeatAck);
      }
      return nullptr;
    case wire::ImmediateType::goodbye:
      if (cid == 0 && !path->is_memory() && path->session_.options().exactly_once()) {
        path->session_.fence_all("the client said goodbye", /*fault=*/false);
      }
      return nullptr;
    case wire::ImmediateType::access:
      if (cid != 0 || !path->session_.options().tells_access()) return nullptr;
      if (const Complaint wrong = path->notices_.on_access_acknowledged(immediate)) return wrong;
      path->send_access();  // it may have changed meanwhile
      return nullptr;
    case wire::ImmediateType::recall:
      if (cid != 0 || !path->session_.options().has_memory_paths()) return nullptr;
      if (const auto heard = path->notices_.on_recall_acknowledged(immediate)) {
        path->session_.on_recall_heard(*heard);
        return nullptr;
      }
      return "an answer to a recall that was not sent";
    default:
      return nullptr;  // answers to heartbeats are a sign of life only; unknown kinds are ignored
  }
}

Complaint ServerPath::Connection::on_revoked(std::uint32_t window) {
  if (path->state_ == ServerPathState::closed) return nullptr;
  return path->begin(cid, path->revoking_[window]);
}

Complaint ServerPath::Connection::on_message(ConstBytes message, std::optional<std::uint32_t>) {
  if (path->state_ == ServerPathState::closed) return nullptr;
  if (path->state_ != ServerPathState::connecting) return "an unexpected message";
  if (path->turned_down_ != nullptr) return "a message after the path was refused";
  if (path->proofs_.needed() && !path->proofs_.at(cid).proven()) {
    return path->on_proof(cid, message);
  }
  if (cid != 0) return "an unexpected message";
  return path->on_info_request(message);
}

void ServerPath::set_chunks(MutableBytes chunks) { chunks_.set(chunks); }

/// Proofs arrive in any order, and the info request may be earlier than some of them.
Complaint ServerPath::on_proof(std::uint16_t cid, ConstBytes message) {
  if (const Complaint refused = proofs_.on_message(cid, message)) return refused;
  const bool last = proofs_.at(cid).proven() && proofs_.all_proven();
  return last && !told_name_.empty() ? take_in(told_name_) : nullptr;
}

Complaint ServerPath::on_info_request(ConstBytes message) {
  if (!complete()) return "an info request while connections are missing";
  const auto name = wire::decode_info_request(message);
  if (!name) return to_string(name.error());
  if (!told_name_.empty()) return "a second info request";
  if (!proofs_.all_proven()) {
    told_name_ = *name;
    return nullptr;
  }
  return take_in(*name);
}

Complaint ServerPath::take_in(const std::string& name) {
  if (session_.up_ && name != session_.name) return "another name than the session's other paths";
  const bool alone = !session_.up_ || session_.connected_paths() == 0;
  if (is_memory() && alone) return "a memory path without any other";
  const PathRefusal refusal = owner_.admit(name);
  if (refusal.why != nullptr) return turn_down(refusal);
  return is_memory() ? serve_memory_path() : serve(name);
}

/// A client of our own is told, and leaves; it has as long as for its handshake. Linux's knows no
/// refusal here.
Complaint ServerPath::turn_down(const PathRefusal& refusal) {
  if (refusal.error == 0 || !session_.options().extension) return refusal.why;
  turned_down_ = refusal.why;
  connections_[0].queue_pair->send(wire::bytes_of(wire::encode_info_refusal(refusal.error)));
  return nullptr;
}

/// A memory path belongs to a session, and makes none. The chunk that it tells of opens nothing.
Complaint ServerPath::serve_memory_path() {
  for (Connection& connection : connections_) {
    connection.queue_pair->post_receives(connection.cid == 0 ? kServerControlReceives : 1U, 0);
  }
  state_ = ServerPathState::connected;
  owner_.on_connected();
  told_of_memory_ = true;
  session_.handler_.on_memory_path_up(session_, options_.uuid, *regions_);
  const wire::Descriptor chunk{
      .address = 0, .key = 0, .length = kMemoryPathIoSize + kMemoryPathHeaderSize};
  connections_[0].queue_pair->send(wire::encode_info_response({&chunk, 1}));
  return nullptr;
}

Complaint ServerPath::serve(const std::string& name) {
  if (!owner_.provide_chunks()) return "no memory for the path's chunks";
  session_.name = name;
  if (proofs_.needed() && !session_.up_) session_.identity = proofs_.at(0).user();

  // The client may send as soon as it has the response, so everything is ready before.
  const auto& options = session_.options();
  for (Connection& connection : connections_) {
    connection.queue_pair->post_receives(
        options.queue_depth + (connection.cid == 0 ? kServerControlReceives : 1U), 0);
  }
  requests_.resize(options.queue_depth);
  loan_.belong_to(session_.identity.name);
  for (Connection& connection : connections_) {
    if (loan_.limited()) connection.ask_for_room(chunks_.size());
  }
  messages_.resize(options.queue_depth * wire::kMaxUserMessage);
  session_.up();
  state_ = ServerPathState::connected;
  owner_.on_connected();
  session_.handler_.on_paths_changed(session_);
  connections_[0].queue_pair->send(wire::encode_info_response(expose_chunks()));
  send_access();  // it may have changed since the path was accepted
  session_.send_recall();
  return nullptr;
}

/// Static keys: all chunks are one window of every connection, known by one key. New keys: every
/// chunk is a window of its own, which belongs to the path.
std::vector<wire::Descriptor> ServerPath::expose_chunks() {
  const auto& options = session_.options();
  std::vector<wire::Descriptor> descriptors;
  if (options_.new_keys) {
    revoking_.resize(options.queue_depth);
    for (std::uint32_t id = 0; id < options.queue_depth; ++id) {
      descriptors.push_back(expose_chunk(*connections_[0].queue_pair, id));
    }
    return descriptors;
  }
  RemoteMemory memory;
  for (Connection& connection : connections_) {
    memory = connection.queue_pair->expose(0, chunks_.memory());
  }
  descriptors.push_back(
      {memory.address, memory.key, static_cast<std::uint32_t>(options.chunk_memory())});
  return descriptors;
}

wire::Descriptor ServerPath::expose_chunk(QueuePair& queue_pair, std::uint32_t buffer_id) {
  const RemoteMemory memory = queue_pair.expose(buffer_id, chunks_.at(buffer_id));
  return {memory.address, memory.key, chunks_.size()};
}

}  // namespace rtrs
