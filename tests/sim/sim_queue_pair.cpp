// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/sim_queue_pair.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"

namespace sim {
namespace {

/// A message may wait so long for a receive of a peer that is running.
constexpr Duration kReceivePatience = 5s;

}  // namespace

rtrs::RemoteMemory KeySource::issue(rtrs::MutableBytes memory) {
  if (shared_) {
    for (const Issued& known : issued_) {
      if (known.data == memory.data() && known.size == memory.size()) return known.where;
    }
  }
  // Any address, as long as the end does not wrap.
  const rtrs::RemoteMemory where{world_.rng().next() >> 8, next_};
  next_ += static_cast<std::uint32_t>(world_.rng().between(1, 7));
  if (shared_) issued_.push_back({memory.data(), memory.size(), where});
  return where;
}

SimQueuePair::SimQueuePair(std::shared_ptr<Wire> wire, Side side, KeySource& keys, Options options)
    : wire_{std::move(wire)},
      world_{wire_->world()},
      side_{side},
      keys_{keys},
      options_{options},
      scope_{world_, 0} {
  wire_->attach(side_, *this);
}

SimQueuePair::~SimQueuePair() { close(); }

void SimQueuePair::close() {
  if (std::exchange(closed_, true)) return;
  queue_.clear();
  flushed_ = 0;
  inbox_.clear();
  waiting_.clear();
  wire_->close(side_);
}

void SimQueuePair::violate(const std::string& rule) {
  world_.violate(std::string{side_ == Side::client ? "client" : "server"} + ", session " +
                 std::to_string(wire_->session()) + ", connection " + std::to_string(wire_->cid()) +
                 ": " + rule);
}

// ---- Memory and receives ------------------------------------------------------------------------

rtrs::RemoteMemory SimQueuePair::expose(std::uint32_t window, rtrs::MutableBytes memory) {
  if (options_.linux_server != nullptr) {
    options_.linux_server->set_chunks(memory);
    return {};
  }
  if (options_.chunk_keys != nullptr) {
    const rtrs::RemoteMemory where = options_.chunk_keys->expose(window, memory);
    post_to_device(Packet::Kind::bind, where.key);
    return where;
  }
  const auto known = current_.find(window);
  if (known != current_.end() && windows_[known->second].exposed) {
    violate("exposed window " + std::to_string(window) + " twice");
  }
  if (known != current_.end()) windows_[known->second].answered = true;  // or it would not be free
  const rtrs::RemoteMemory where = keys_.issue(memory);
  windows_[where.key] = {memory, where.address, true};
  current_[window] = where.key;
  return where;
}

void SimQueuePair::withdraw(std::uint32_t window) {
  const auto known = current_.find(window);
  if (known == current_.end() || !windows_[known->second].exposed) {
    return violate("withdrew window " + std::to_string(window) + ", which is not exposed");
  }
  Window& w = windows_[known->second];
  const bool answered = in_reply_ && !giving_up_;
  if (answered && w.owes_invalidation && !w.invalidated) {
    violate("the reply to a read came without the invalidation that was asked for");
  }
  w.exposed = false;
  w.answered = answered;
}

void SimQueuePair::post_receives(unsigned count, std::uint32_t bytes) {
  if (count == 0) return;
  if (!receives_.empty() && receives_.back().bytes == bytes) {
    receives_.back().count += count;
  } else {
    receives_.push_back({count, bytes});
  }
  accept_waiting();
}

bool SimQueuePair::take_receive(const Packet& packet) {
  if (receives_.empty()) return false;
  if (packet.kind == Packet::Kind::message && packet.payload.size() > receives_.front().bytes) {
    violate("a message of " + std::to_string(packet.payload.size()) +
            " bytes came for a receive of " + std::to_string(receives_.front().bytes));
  }
  last_receive_ = receives_.front().bytes;
  if (--receives_.front().count == 0) receives_.pop_front();
  return true;
}

// ---- Receiving ----------------------------------------------------------------------------------

void SimQueuePair::arrive(Packet packet) {
  if (closed_) return;
  world_.note(side_ == Side::client ? "to-clt" : "to-srv", wire_->session(), "arrives",
              wire_->cid(), static_cast<std::uint64_t>(packet.kind), packet.immediate.value_or(0));
  if (over_) packet = {.kind = Packet::Kind::end};  // nothing comes behind it
  over_ = packet.kind == Packet::Kind::end;
  if (wire_->knobs().stream) {
    inbox_.push_back(std::move(packet));
    if (on_ready) on_ready();
    return;
  }
  waiting_.push_back(std::move(packet));
  accept_waiting();
}

/// As the hardware does: memory is written at once, completions come in order.
void SimQueuePair::accept_waiting() {
  bool any = false;
  while (!waiting_.empty()) {
    Packet& packet = waiting_.front();
    if (reject_stale(packet)) break;
    if (packet.takes_receive() && !take_receive(packet)) {
      watch_for_receive();
      break;
    }
    place(packet, packet.payload.size());
    if (refused_) {
      waiting_.clear();
      over_ = true;
      inbox_.push_back({.kind = Packet::Kind::end});
      any = true;
      break;
    }
    inbox_.push_back(std::move(packet));
    waiting_.pop_front();
    ++accepted_;
    any = true;
  }
  if (any && on_ready) on_ready();
}

/// As the hardware does with a key that is not valid: nothing lands, and the queue pair has failed.
bool SimQueuePair::reject_stale(const Packet& packet) {
  if (!packet.stale || options_.chunk_keys == nullptr) return false;
  if (options_.chunk_keys->find(packet.to.key) != nullptr) {
    violate("a stale copy lands in a chunk: its key is over, but still good");
    return false;
  }
  world_.note("to-srv", wire_->session(), "refuses a key", wire_->cid(), packet.to.key);
  waiting_.clear();
  over_ = true;
  inbox_.push_back({.kind = Packet::Kind::end});
  if (on_ready) on_ready();
  return true;
}

void SimQueuePair::watch_for_receive() {
  scope_.after(kReceivePatience, [this, accepted = accepted_] {
    if (waiting_.empty() || accepted != accepted_) return;
    const bool awake = world_.awake_since(options_.node) + kReceivePatience <= world_.now();
    if (!awake) return watch_for_receive();
    violate("a message waits for ever for a receive");
  });
}

/// Where a write goes; false, after a complaint, when it must not go there.
bool SimQueuePair::find_target(const Packet& packet, Window& target) {
  const auto refuse = [this](const char* rule) {
    violate(rule);
    return false;
  };
  if (options_.linux_server != nullptr) {
    const LinuxServer::Chunk* chunk = options_.linux_server->find(packet.to.key);
    if (chunk == nullptr) return refuse("the client wrote with a key that no chunk has");
    if (!chunk->open) return refuse("the client wrote to a chunk that is in use");
    target = {chunk->memory, chunk->address, true};
    return true;
  }
  if (options_.chunk_keys != nullptr) {
    const ChunkKeys::Chunk* chunk = options_.chunk_keys->find(packet.to.key);
    if (chunk == nullptr) return refuse("the client wrote with a key that opens nothing");
    target = {chunk->memory, chunk->address, true};
    return true;
  }
  const auto found = windows_.find(packet.to.key);
  if (found == windows_.end()) return refuse("the peer wrote with a key that does not exist");
  target = found->second;
  if (target.invalidated) return refuse("the peer wrote with a key that it has invalidated");
  if (target.answered) return refuse("the peer wrote data of a request that it had answered");
  return true;
}

/// Copies bytes up to `upto` of a write to their place, if it is still exposed.
void SimQueuePair::place(Packet& packet, std::size_t upto) {
  if (packet.kind == Packet::Kind::read) return answer_read(packet);
  if (packet.kind == Packet::Kind::read_data) return land_read(packet);
  if (packet.kind != Packet::Kind::write || packet.payload.empty()) return;
  if (options_.regions != nullptr && SimRegions::has(packet.to.key)) {
    return place_in_region(packet, upto);
  }
  Window window;
  if (!find_target(packet, window)) return;
  const std::uint64_t offset = packet.to.address - window.address;
  if (offset > window.memory.size() || packet.payload.size() > window.memory.size() - offset) {
    return violate("the peer wrote " + std::to_string(packet.payload.size()) + " bytes at " +
                   std::to_string(offset) + " of " + std::to_string(window.memory.size()));
  }
  if (window.exposed) {
    std::memcpy(window.memory.data() + offset + packet.landed,
                packet.payload.data() + packet.landed, upto - packet.landed);
  }
  packet.landed = static_cast<std::uint32_t>(upto);
}

/// Streams: what the handler has no room for stays where it is.
SimQueuePair::Status SimQueuePair::find_room(const Packet& packet,
                                             rtrs::QueuePairHandler& handler) {
  const bool begins = packet.kind == Packet::Kind::write && packet.landed == 0;
  const auto window = windows_.find(packet.to.key);
  if (!begins || packet.payload.empty() || window == windows_.end()) return Status::drained;
  const std::uint64_t address = packet.to.address - window->second.address;
  const auto length = static_cast<std::uint32_t>(packet.payload.size());
  if (!handler.asks_for_room(address, length)) return Status::drained;
  const auto room = handler.room_for(address, length);
  complaint_ = room.wrong;
  const bool starves = room.wrong == nullptr && !room.there;
  if (starves && !over_) return Status::starves;
  ended_ = starves || room.wrong != nullptr;  // who has left does not read the answers
  return ended_ ? Status::ended : Status::drained;
}

/// Streams: a large payload may come in two parts. False: the rest comes later.
bool SimQueuePair::land(Packet& packet) {
  if (packet.kind == Packet::Kind::write && packet.landed == 0 &&
      packet.payload.size() > kMaxInline && world_.rng().chance(300)) {
    place(packet, world_.rng().between(1, packet.payload.size() - 1));
    return false;
  }
  place(packet, packet.payload.size());
  if (packet.takes_receive() && !take_receive(packet)) violate("a message found no receive");
  return true;
}

SimQueuePair::Status SimQueuePair::progress(rtrs::QueuePairHandler& handler, unsigned& heard) {
  auto budget = static_cast<unsigned>(world_.rng().between(1, 8));
  while (!inbox_.empty() && !world_.broken()) {
    if (budget-- == 0) return Status::more;
    if (wire_->knobs().stream) {
      const Status room = find_room(inbox_.front(), handler);
      if (room != Status::drained) return room;
    }
    if (wire_->knobs().stream && !land(inbox_.front())) return Status::more;
    if (world_.broken()) return Status::ended;
    if (refused_) ended_ = true;
    if (ended_) return Status::ended;
    const Packet packet = std::move(inbox_.front());
    inbox_.pop_front();
    wire_->taken(side_);
    if (packet.kind == Packet::Kind::end) ended_ = true;
    if (ended_) return Status::ended;
    if (packet.kind == Packet::Kind::record) {
      if (on_record)
        on_record(options_.resends_at_once ? extended(packet.payload) : packet.payload);
      if (closed_) return Status::ended;
      continue;
    }
    if (packet.kind == Packet::Kind::message || packet.immediate) ++heard;
    announce(packet);
    dispatch(packet, handler);
    if (complaint_ != nullptr) return Status::ended;
    if (closed_) return Status::ended;
  }
  return ended_ ? Status::ended : Status::drained;
}

/// Adds the server's identity, by which the client can send again at once.
std::vector<std::byte> SimQueuePair::extended(rtrs::ConstBytes record) const {
  auto response = rtrs::wire::copy_of<rtrs::wire::ConnectResponse>(record);
  if (response.error == 0) {
    response.extension_magic = rtrs::wire::kExtensionMagic;
    response.extension_version = rtrs::wire::kExtensionVersion;
    response.features = rtrs::wire::kFeatureExactlyOnce;
    response.session_epoch = wire_->session_epoch();
  }
  const auto bytes = rtrs::wire::bytes_of(response);
  return {bytes.begin(), bytes.end()};
}

void SimQueuePair::announce(const Packet& packet) const {
  using enum rtrs::wire::ImmediateType;
  if (!on_answer || !packet.immediate) return;
  const auto type = rtrs::wire::type_of(*packet.immediate);
  if (type == io_response || type == io_response_with_invalidate) on_answer(*packet.immediate);
}

void SimQueuePair::dispatch(const Packet& packet, rtrs::QueuePairHandler& handler) {
  switch (packet.kind) {
    case Packet::Kind::write:
      if (!packet.immediate) return;
      if (options_.linux_server != nullptr) {
        options_.linux_server->arrived(*packet.immediate);
      }
      if (side_ == Side::client && *packet.immediate >> 28 == 11) {
        notice_ = *packet.immediate & 0xFFF'FFFF;
      }
      in_reply_ = true;
      complaint_ = handler.on_write_with_immediate(
          *packet.immediate, static_cast<std::uint32_t>(packet.payload.size()));
      in_reply_ = false;
      return;
    case Packet::Kind::message:
      in_reply_ = packet.immediate.has_value();
      complaint_ = handler.on_message(packet.payload, packet.immediate);
      in_reply_ = false;
      return;
    case Packet::Kind::unbind:
      complaint_ = handler.on_revoked(options_.chunk_keys->tell_end(packet.to.key));
      return;
    case Packet::Kind::read:
      return;
    case Packet::Kind::read_data:
      complaint_ = end_read(handler);
      return;
    default:
      invalidate(packet.to.key);
  }
}

void SimQueuePair::invalidate(std::uint32_t key) {
  const auto found = windows_.find(key);
  if (found == windows_.end()) return violate("the peer invalidated a key that does not exist");
  Window& window = found->second;
  if (!window.owes_invalidation) return violate("the peer invalidated a key unasked");
  if (window.invalidated) return violate("the peer invalidated a key twice");
  window.invalidated = true;
  post_receives(1, last_receive_);  // the part of a Linux client that ours does not have
}

}  // namespace sim
