#include "tests/sim/sim_queue_pair.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rdma/wire/messages.hpp"

namespace sim {
namespace {

/// A message may wait so long for a receive of a peer that is running.
constexpr Duration kReceivePatience = 5s;

std::vector<std::byte> copy(rtrs::ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

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

// ---- Sending ------------------------------------------------------------------------------------

rtrs::Ticket SimQueuePair::post(Packet packet) {
  packet.ticket = ++posted_;
  if (closed_) return posted_;
  queue_.push_back(std::move(packet));
  if (on_post) on_post();
  return posted_;
}

rtrs::Ticket SimQueuePair::write_with_immediate(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                                rtrs::ConstBytes header, std::uint32_t immediate) {
  if (header.size() > kMaxInline) violate("posted more than kMaxInline bytes of header");
  Packet packet{.kind = Packet::Kind::write, .to = to, .immediate = immediate, .source = data};
  packet.payload = copy(header);
  if (options_.linux_like) ask_for_invalidation(packet.payload);
  return post(std::move(packet));
}

rtrs::Ticket SimQueuePair::write(rtrs::RemoteMemory to, rtrs::ConstBytes data) {
  return post({.kind = Packet::Kind::write, .to = to, .source = data});
}

rtrs::Ticket SimQueuePair::send(rtrs::ConstBytes message) {
  return post({.kind = Packet::Kind::message, .payload = copy(message)});
}

rtrs::Ticket SimQueuePair::send_with_immediate(rtrs::ConstBytes message, std::uint32_t immediate) {
  return post({.kind = Packet::Kind::message, .immediate = immediate, .payload = copy(message)});
}

rtrs::Ticket SimQueuePair::send_with_invalidate(std::uint32_t key) {
  return post({.kind = Packet::Kind::invalidate, .to = {0, key}});
}

void SimQueuePair::send_record(rtrs::ConstBytes record) {
  post({.kind = Packet::Kind::record, .payload = copy(record)});
  flush();
}

/// The header of a read with a buffer gets the flag that our own clients never set.
void SimQueuePair::ask_for_invalidation(std::vector<std::byte>& trailer) {
  using rtrs::wire::Descriptor;
  using rtrs::wire::ReadHeader;
  constexpr std::size_t kSize = sizeof(ReadHeader) + sizeof(Descriptor);
  if (trailer.size() < kSize) return;
  std::byte* place = trailer.data() + trailer.size() - kSize;
  ReadHeader header;
  std::memcpy(&header, place, sizeof(header));
  if (header.type != static_cast<std::uint16_t>(rtrs::wire::MessageType::read) ||
      header.descriptor_count != 1 || header.user_length != trailer.size() - kSize) {
    return;
  }
  header.flags = rtrs::wire::kNeedInvalidate;
  std::memcpy(place, &header, sizeof(header));
  Descriptor descriptor;
  std::memcpy(&descriptor, place + sizeof(header), sizeof(descriptor));
  windows_.at(descriptor.key).owes_invalidation = true;
}

void SimQueuePair::flush() {
  flushed_ = queue_.size();
  pump();
}

void SimQueuePair::pump() {
  while (!departing_ && flushed_ > 0 && !closed_ && !wire_->full(side_)) {
    const NetworkKnobs& knobs = wire_->knobs();
    if (world_.rng().chance(knobs.eager)) {
      depart();
      continue;
    }
    departing_ = true;
    scope_.after(world_.rng().delay(0us, knobs.departure_max), [this] {
      departing_ = false;
      if (flushed_ > 0 && !closed_) depart();
      pump();
    });
  }
}

void SimQueuePair::depart() {
  Packet packet = std::move(queue_.front());
  queue_.pop_front();
  --flushed_;
  packet.payload.insert(packet.payload.begin(), packet.source.begin(), packet.source.end());
  packet.source = {};
  sent_ = std::max(sent_, packet.ticket);
  wire_->carry(side_, std::move(packet));
}

void SimQueuePair::disown_unsent() {
  for (Packet& packet : queue_) {
    packet.payload.insert(packet.payload.begin(), packet.source.begin(), packet.source.end());
    packet.source = {};
  }
  sent_ = posted_;
}

// ---- Memory and receives ------------------------------------------------------------------------

rtrs::RemoteMemory SimQueuePair::expose(std::uint32_t window, rtrs::MutableBytes memory) {
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
  if (in_reply_ && w.owes_invalidation && !w.invalidated) {
    violate("the reply to a read came without the invalidation that was asked for");
  }
  w.exposed = false;
  w.answered = in_reply_;
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
  if (--receives_.front().count == 0) receives_.pop_front();
  return true;
}

// ---- Receiving ----------------------------------------------------------------------------------

void SimQueuePair::arrive(Packet packet) {
  if (closed_) return;
  world_.note(side_ == Side::client ? "to-clt" : "to-srv", wire_->session(), "arrives",
              wire_->cid(), static_cast<std::uint64_t>(packet.kind), packet.immediate.value_or(0));
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
    if (packet.takes_receive() && !take_receive(packet)) {
      watch_for_receive();
      break;
    }
    place(packet, packet.payload.size());
    inbox_.push_back(std::move(packet));
    waiting_.pop_front();
    ++accepted_;
    any = true;
  }
  if (any && on_ready) on_ready();
}

void SimQueuePair::watch_for_receive() {
  scope_.after(kReceivePatience, [this, accepted = accepted_] {
    if (waiting_.empty() || accepted != accepted_) return;
    const bool awake = world_.awake_since(options_.node) + kReceivePatience <= world_.now();
    if (!awake) return watch_for_receive();
    violate("a message waits for ever for a receive");
  });
}

/// Copies bytes up to `upto` of a write to their place, if it still exists.
void SimQueuePair::place(Packet& packet, std::size_t upto) {
  if (packet.kind != Packet::Kind::write || packet.payload.empty()) return;
  const auto found = windows_.find(packet.to.key);
  if (found == windows_.end()) return violate("the peer wrote with a key that does not exist");
  const Window& window = found->second;
  if (window.invalidated) return violate("the peer wrote with a key that it has invalidated");
  if (window.answered) return violate("the peer wrote data of a request that it had answered");
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
    if (wire_->knobs().stream && !land(inbox_.front())) return Status::more;
    if (world_.broken()) return Status::ended;
    const Packet packet = std::move(inbox_.front());
    inbox_.pop_front();
    wire_->taken(side_);
    if (packet.kind == Packet::Kind::end) ended_ = true;
    if (ended_) return Status::ended;
    if (packet.kind == Packet::Kind::record) {
      if (on_record) on_record(packet.payload);
      if (closed_) return Status::ended;
      continue;
    }
    if (packet.kind == Packet::Kind::message || packet.immediate) ++heard;
    dispatch(packet, handler);
    if (complaint_ != nullptr) return Status::ended;
    if (closed_) return Status::ended;
  }
  return ended_ ? Status::ended : Status::drained;
}

void SimQueuePair::dispatch(const Packet& packet, rtrs::QueuePairHandler& handler) {
  switch (packet.kind) {
    case Packet::Kind::write:
      if (!packet.immediate) return;
      in_reply_ = true;
      complaint_ = handler.on_write_with_immediate(
          *packet.immediate, static_cast<std::uint32_t>(packet.payload.size()));
      in_reply_ = false;
      return;
    case Packet::Kind::message:
      complaint_ = handler.on_message(packet.payload, packet.immediate);
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
  post_receives(1, 0);  // the part of a Linux client that ours does not have
}

}  // namespace sim
