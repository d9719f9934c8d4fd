// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/path.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// Permits that are kept for messages on connection 0, so that opening a device never waits for
/// I/O.
constexpr std::uint16_t kControlSlots = 4;
constexpr unsigned kControlReceives = 2 * kControlSlots + 56;
constexpr const char* kRefused = "the server refused the session";
/// Answers to heartbeats and notices that may wait for a server to read them.
constexpr Ticket kMaxUnsentAcks = 1024;

}  // namespace

ClientPath::ClientPath(ClientPathOptions options)
    : options_{std::move(options)},
      proofs_{options_.authenticates ? connection_count() : std::size_t{0}},
      pulse_{options_.heartbeat_interval, options_.heartbeat_misses} {}

wire::ConnectRequest ClientPath::connect_request(std::uint16_t cid) const {
  wire::ConnectParameters parameters;
  parameters.cid = cid;
  parameters.cid_count = connection_count();
  parameters.reconnect_count = options_.reconnect_count;
  parameters.path_uuid = options_.path_uuid;
  parameters.session_uuid = options_.session_uuid;
  // Once connection 0 stands the session exists, as Linux has it.
  parameters.first_connection = options_.first_connection || cid != 0;
  parameters.kind = options_.kind;
  parameters.extension.present = true;
  parameters.extension.features =
      options_.features | (options_.authenticates ? wire::kFeatureAuthentication : 0U);
  return wire::encode(parameters);
}

Complaint ClientPath::on_answer(std::uint16_t cid, ConstBytes record) {
  const auto answer = wire::decode_connect_response(record);
  if (!answer) return to_string(answer.error());
  if (answer->error != 0) {
    refusal_ = answer->error;
    return kRefused;
  }
  const bool proves = (answer->accept.extension.features & wire::kFeatureAuthentication) != 0;
  if (proves != options_.authenticates) {
    return proves ? "the server wants a proof that was not offered"
                  : options_.words->needs_no_proof;
  }
  if (proves) proofs_.on_answer(cid, wire::copy_of<wire::ConnectResponse>(record));
  if (cid == 0) {  // later records repeat it; Linux reads them on connection 0 only, and so do we
    accepted_ = answer->accept;
    if (foreign()) return "the path leads to another server than it must";
    accepted_.extension.features &= options_.features;
    access_ = accepted_.extension.access;
    if (options_.may_be_linux && !accepted_.extension.present) {
      pulse_ = PathPulse{kLinuxHeartbeatInterval, kLinuxHeartbeatMisses};
    }
  }
  return nullptr;
}

auth::ClientProof& ClientPath::start_proof(std::uint16_t cid, QueuePair& queue_pair,
                                           auth::ClientKey key, const auth::Nonce& nonce) {
  return proofs_.start(cid, queue_pair, std::move(key), nonce, connect_request(cid));
}

bool ClientPath::turned_away() const {
  const bool refused = refusal_ != 0 || foreign() || proofs_.any_refused();
  return answered() && !refused && state_ != ClientPathState::connected;
}

QueueSizes ClientPath::queue_sizes(std::uint16_t cid) const {
  if (is_memory()) {
    constexpr unsigned kPosts = 2 * QueuePair::kMaxUnconfirmed;
    return {.sends = kPosts, .receives = cid == 0 ? 2U + kControlReceives : 1U, .reads = true};
  }
  if (cid == 0) return {2U * kControlSlots + 3, 2U + kControlReceives, 0};
  const unsigned slots = slots_per_lane()[cid];
  return {slots + 2U, receives_needed(slots) + (options_.authenticates ? 1U : 0U), 0};
}

void ClientPath::start_exchange(QueuePair& control) {
  state_ = ClientPathState::exchanging;
  control_ = &control;
  const std::size_t room =
      sizeof(wire::InfoResponseHeader) + accepted_.queue_depth * sizeof(wire::Descriptor);
  control.post_receives(1, static_cast<std::uint32_t>(room));
  control.send(wire::bytes_of(wire::encode_info_request(options_.session_name)));
  control.flush();
}

std::uint16_t ClientPath::permits() const {
  const std::uint16_t granted = accepted_.queue_depth;
  return options_.permits == 0 ? granted : std::min(granted, options_.permits);
}

std::vector<std::uint16_t> ClientPath::slots_per_lane() const {
  const unsigned depth = permits();
  const unsigned lanes = options_.io_connections;
  unsigned control = 0;
  if (depth >= 4U * kControlSlots) {
    control = kControlSlots;
  } else if (depth > 1) {
    control = 1;
  }
  std::vector<std::uint16_t> slots{static_cast<std::uint16_t>(control)};
  const unsigned rest = depth - control;
  for (unsigned i = 0; i < lanes; ++i) {
    slots.push_back(static_cast<std::uint16_t>(rest / lanes + (i < rest % lanes ? 1 : 0)));
  }
  return slots;
}

std::uint16_t ClientPath::control_slots() const { return std::min(permits(), kControlSlots); }

ClientLane::Link ClientPath::link(QueuePair& queue_pair, std::size_t first, std::size_t count) {
  RTRS_ENSURE(state_ == ClientPathState::connected);
  ClientLane::Link link;
  link.queue_pair = &queue_pair;
  link.chunks = std::span{chunks_}.subspan(first, count);
  link.queue_depth = accepted_.queue_depth;
  link.chunk_size = accepted_.chunk_size();
  link.max_io_size = accepted_.max_io_size;
  link.new_rkey = accepted_.new_rkey;
  link.exactly_once = exactly_once();
  link.races = link.exactly_once && (accepted_.extension.features & wire::kFeatureRaces) != 0;
  link.accessible = accessible();
  link.data_rides_with_reply =
      !accepted_.new_rkey &&
      (options_.data_rides_with_reply || (options_.may_be_linux && accepted_.extension.present));
  return link;
}

void ClientPath::attach(ClientLane& lane, unsigned index, std::uint16_t cid,
                        QueuePair& queue_pair) {
  const auto slots = slots_per_lane();
  std::size_t first = 0;
  for (std::uint16_t i = 0; i < cid; ++i) first += slots[i];
  if (cid != 0) {
    queue_pair.post_receives(receives_needed(slots[cid]), receive_bytes());
  }
  lane.attach(index, link(queue_pair, first, slots[cid]));
}

void ClientPath::attach_reopening(ClientLane& lane, unsigned index, std::uint16_t slot,
                                  QueuePair& queue_pair) {
  auto reopening = link(queue_pair, slot, 1);
  reopening.accessible = true;  // it carries no I/O
  lane.attach(index, reopening);
}

Heartbeat::Verdict ClientPath::on_tick(Instant now, bool traffic) {
  const auto verdict = pulse_.on_tick(now, traffic, /*counts=*/exactly_once());
  if (verdict == Heartbeat::Verdict::send) {
    control_->write_with_immediate({}, {}, {}, wire::kHeartbeat);
    control_->flush();
  }
  return verdict;
}

bool ClientPath::say_goodbye() {
  if (state_ != ClientPathState::connected || !exactly_once()) return false;
  control_->write_with_immediate({}, {}, {}, wire::kGoodbye);
  control_->flush();
  return true;
}

Complaint ClientPath::on_write_with_immediate(std::uint32_t immediate, std::uint32_t bytes) {
  if (state_ != ClientPathState::connected) return "an immediate before the info response";
  pulse_.on_arrival();
  switch (wire::type_of(immediate)) {
    case wire::ImmediateType::heartbeat:
      if (answers_unread()) return "the server does not read the answers to its heartbeats";
      last_ack_ = control_->write_with_immediate({}, {}, {}, wire::kHeartbeatAck);
      control_->flush();
      control_->post_receives(1, receive_bytes());
      return nullptr;
    case wire::ImmediateType::heartbeat_ack:
      pulse_.on_answer();
      control_->post_receives(1, receive_bytes());
      return nullptr;
    case wire::ImmediateType::access:
      control_->post_receives(1, receive_bytes());
      return on_access(immediate & wire::kImmediatePayloadMask);
    case wire::ImmediateType::recall:
      control_->post_receives(1, receive_bytes());
      return on_recall(immediate & wire::kImmediatePayloadMask);
    default:
      if (control_handler_ == nullptr) return "a reply before the first request";
      return control_handler_->on_write_with_immediate(immediate, bytes);
  }
}

bool ClientPath::answers_unread() const { return last_ack_ > control_->sent() + kMaxUnsentAcks; }

Complaint ClientPath::on_access(std::uint32_t value) {
  if (!tells_access()) return "an access notice that was not agreed on";
  const auto access = wire::decode_access(value);
  if (!access) return "an access notice with an unknown value";
  if (notice_) return "an access notice before the last one was answered";
  if (answers_unread()) return "the server does not read the answers to its access notices";
  notice_ = *access;
  access_ = *access;
  return nullptr;
}

void ClientPath::acknowledge_access() {
  const auto notice = std::exchange(notice_, std::nullopt);
  if (!notice || state_ != ClientPathState::connected) return;
  last_ack_ = control_->write_with_immediate({}, {}, {}, wire::access_immediate(*notice));
  control_->flush();
}

Complaint ClientPath::on_recall(std::uint32_t count) {
  const bool agreed = (accepted_.extension.features & wire::kFeatureMemoryPaths) != 0;
  if (!agreed || is_memory()) return "a recall that was not agreed on";
  if (recall_) return "a recall before the last one was answered";
  if (answers_unread()) return "the server does not read the answers to its recalls";
  recall_ = count;
  return nullptr;
}

void ClientPath::acknowledge_recall() {
  const auto recall = std::exchange(recall_, std::nullopt);
  if (!recall || state_ != ClientPathState::connected) return;
  last_ack_ = control_->write_with_immediate({}, {}, {}, wire::recall_immediate(*recall));
  control_->flush();
}

Complaint ClientPath::on_message(ConstBytes message, std::optional<std::uint32_t> immediate) {
  if (state_ == ClientPathState::connected) {
    if (control_handler_ == nullptr) return "a message before the first request";
    pulse_.on_arrival();
    return control_handler_->on_message(message, immediate);
  }
  if (state_ != ClientPathState::exchanging) return "a message before the info request";
  if (const int error = wire::refusal_of_info_response(message); error != 0) {
    refusal_ = error;
    return kRefused;
  }
  auto chunks = wire::decode_info_response(message, accepted_.queue_depth, accepted_.chunk_size());
  if (!chunks) return to_string(chunks.error());
  chunks_ = std::move(*chunks);
  state_ = ClientPathState::connected;
  // At once, not when the lanes are attached: a heartbeat may be right behind the response.
  control_->post_receives(kControlReceives, receive_bytes());
  return nullptr;
}

}  // namespace rtrs
