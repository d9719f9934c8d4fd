// SPDX-License-Identifier: BSD-3-Clause
// The sending half of the simulated queue pair.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "bridge/protocol/messages.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace sim {
namespace {

std::vector<std::byte> copy(rtrs::ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

/// The device does it by itself, without a network.
bool is_local(const Packet& packet) {
  return packet.kind == Packet::Kind::bind || packet.kind == Packet::Kind::unbind;
}

}  // namespace

rtrs::Ticket SimQueuePair::post(Packet packet) {
  packet.ticket = ++posted_;
  if (closed_) return posted_;
  queue_.push_back(std::move(packet));
  if (on_post) on_post();
  return posted_;
}

/// In the order of the queue, but nobody waits for a ticket of it.
void SimQueuePair::post_to_device(Packet::Kind kind, std::uint32_t key) {
  if (closed_) return;
  queue_.push_back({.kind = kind, .ticket = posted_, .to = {0, key}});
  if (on_post) on_post();
}

void SimQueuePair::revoke(std::uint32_t window) {
  if (options_.chunk_keys == nullptr) return violate("revoked what has no key of its own");
  post_to_device(Packet::Kind::unbind, options_.chunk_keys->revoke(window));
}

rtrs::Ticket SimQueuePair::write_with_immediate(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                                rtrs::ConstBytes header, std::uint32_t immediate) {
  if (header.size() > kMaxInline) violate("posted more than kMaxInline bytes of header");
  const auto type = rtrs::wire::type_of(immediate);
  if (requests_forbidden_ && type == rtrs::wire::ImmediateType::io_request) {
    violate("a request goes over a path that the server has called inaccessible");
  }
  if (on_request && type == rtrs::wire::ImmediateType::io_request) on_request(immediate);
  if (options_.linux_server != nullptr && type != rtrs::wire::ImmediateType::heartbeat &&
      type != rtrs::wire::ImmediateType::heartbeat_ack) {
    return reply_as_linux(to, data, immediate);
  }
  Packet packet{.kind = Packet::Kind::write, .to = to, .immediate = immediate, .source = data};
  packet.payload = copy(header);
  if (options_.resends_at_once && type == rtrs::wire::ImmediateType::io_request) {
    packet.immediate = take_generation_out(packet.payload, immediate);
  }
  if (options_.linux_like) {
    ask_for_invalidation(packet.payload);
    if (type == rtrs::wire::ImmediateType::io_request) add_newer_flag(packet.payload);
  }
  return post(std::move(packet));
}

/// Before all that has more data and is not sent yet, and what is behind that.
rtrs::Ticket SimQueuePair::write_in_any_order(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                              rtrs::ConstBytes header, std::uint32_t immediate) {
  const std::size_t before = queue_.size();
  const rtrs::Ticket ticket = write_with_immediate(to, data, header, immediate);
  if (!wire_->knobs().overtakes || queue_.size() != before + 1) return ticket;
  const auto larger = std::ranges::find_if(
      queue_, [&](const Packet& packet) { return packet.source.size() > data.size(); });
  if (larger == queue_.end() || std::any_of(larger, queue_.end(), is_local)) return ticket;
  if (static_cast<std::size_t>(larger - queue_.begin()) < flushed_) ++flushed_;
  std::rotate(larger, queue_.end() - 1, queue_.end());
  return ticket;
}

/// Data apart from the immediate, and the chunk's next key in a message where clients expect one.
rtrs::Ticket SimQueuePair::reply_as_linux(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                          std::uint32_t immediate) {
  if (!data.empty()) write(to, data);
  LinuxServer& server = *options_.linux_server;
  if (!server.new_keys()) {
    return post({.kind = Packet::Kind::write, .immediate = immediate});
  }
  return send_with_immediate(server.renew(rtrs::wire::decode_response(immediate).buffer_id),
                             immediate);
}

rtrs::Ticket SimQueuePair::write(rtrs::RemoteMemory to, rtrs::ConstBytes data) {
  return post({.kind = Packet::Kind::write, .to = to, .source = data});
}

rtrs::Ticket SimQueuePair::send(rtrs::ConstBytes message) {
  // The only message that a server sends is the info response.
  if (options_.linux_server != nullptr) {
    return post({.kind = Packet::Kind::message, .payload = options_.linux_server->info_response()});
  }
  return post({.kind = Packet::Kind::message, .payload = copy(message)});
}

rtrs::Ticket SimQueuePair::send_with_immediate(rtrs::ConstBytes message, std::uint32_t immediate) {
  return post({.kind = Packet::Kind::message, .immediate = immediate, .payload = copy(message)});
}

rtrs::Ticket SimQueuePair::send_with_invalidate(std::uint32_t key) {
  return post({.kind = Packet::Kind::invalidate, .to = {0, key}});
}

void SimQueuePair::send_record(rtrs::ConstBytes record) {
  std::vector<std::byte> bytes = copy(record);
  if (options_.resends_at_once) {
    auto request = rtrs::wire::copy_of<rtrs::wire::ConnectRequest>(bytes);
    request.extension_magic = 0;
    request.extension_version = 0;
    request.features = 0;
    bytes = copy(rtrs::wire::bytes_of(request));
  }
  post({.kind = Packet::Kind::record, .payload = std::move(bytes)});
  flush();
}

/// Of a write: its user message becomes shorter, and the header moves forward. Returns the
/// immediate.
std::uint32_t SimQueuePair::take_generation_out(std::vector<std::byte>& trailer,
                                                std::uint32_t immediate) {
  using rtrs::wire::WriteHeader;
  using rtrs::wire::WriteTrailer;
  constexpr std::size_t kSize = sizeof(WriteTrailer) + sizeof(WriteHeader);
  if (trailer.size() < kSize) return immediate;
  const std::size_t at = trailer.size() - sizeof(WriteHeader);
  auto header = rtrs::wire::copy_of<WriteHeader>(rtrs::ConstBytes{trailer}.subspan(at));
  const bool is_write = header.type == static_cast<std::uint16_t>(rtrs::wire::MessageType::write) &&
                        header.user_length == at;
  if (!is_write) return immediate;
  if (at == sizeof(WriteTrailer)) violate("a Linux client asked what became of a write");
  header.user_length = static_cast<std::uint16_t>(at - sizeof(WriteTrailer));
  trailer.resize(at - sizeof(WriteTrailer));
  const auto bytes = rtrs::wire::bytes_of(header);
  trailer.insert(trailer.end(), bytes.begin(), bytes.end());
  return immediate - static_cast<std::uint32_t>(sizeof(WriteTrailer));
}

/// Half of the requests get a flag that a newer Linux may send, and no server knows. A WRITE ZEROES
/// with it would be refused.
void SimQueuePair::add_newer_flag(std::vector<std::byte>& trailer) {
  constexpr std::uint32_t kNewer = 0x1000;
  const auto io = rnbd::wire::decode_io(trailer);
  if (!io || io->operation() == rnbd::wire::IoOperation::write_zeroes || io->sector % 2 != 0)
    return;
  const rtrs::wire::le32 rw = io->rw | kNewer;
  std::memcpy(trailer.data() + offsetof(rnbd::wire::Io, rw), &rw, sizeof(rw));
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
    // A path that comes up binds each of its chunks in front of the info response.
    if (is_local(queue_.front()) || world_.rng().chance(knobs.eager)) {
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

bool SimQueuePair::is_sent(rtrs::Ticket ticket) const {
  return ticket <= disowned_ || std::ranges::none_of(queue_, [&](const Packet& packet) {
           return !is_local(packet) && packet.ticket == ticket;
         });
}

void SimQueuePair::depart() {
  Packet packet = std::move(queue_.front());
  queue_.pop_front();
  --flushed_;
  if (side_ == Side::client && packet.source.size() >= kSector && is_poisoned(packet.source)) {
    violate("sends from memory whose request has ended");
  }
  packet.payload.insert(packet.payload.begin(), packet.source.begin(), packet.source.end());
  packet.source = {};
  if (is_local(packet)) return carry_out(packet);
  const auto waiting = static_cast<rtrs::Ticket>(
      std::ranges::count_if(queue_, [](const Packet& other) { return !is_local(other); }));
  sent_ = std::max(sent_, posted_ - waiting);
  if (on_sent) on_sent();
  wire_->carry(side_, std::move(packet));
}

/// Completions come in the order of the queue: that of an unbinding behind those of the messages
/// before it, which wait for the other end.
void SimQueuePair::carry_out(const Packet& packet) {
  if (packet.kind == Packet::Kind::bind) return options_.chunk_keys->bind(packet.to.key);
  options_.chunk_keys->unbind(packet.to.key);
  const auto acknowledged = wire_->acknowledged(side_);
  if (!acknowledged) return;
  last_completion_ = std::max(last_completion_, *acknowledged);
  scope_.after(last_completion_ - world_.now(), [this, packet] {
    if (closed_ || over_) return;
    inbox_.push_back(packet);
    if (on_ready) on_ready();
  });
}

void SimQueuePair::disown_unsent() {
  for (Packet& packet : queue_) {
    packet.payload.insert(packet.payload.begin(), packet.source.begin(), packet.source.end());
    packet.source = {};
  }
  sent_ = disowned_ = posted_;
}

void SimQueuePair::disown_unsent_in(rtrs::ConstBytes memory) {
  for (Packet& packet : queue_) {
    if (packet.source.data() != memory.data()) continue;
    packet.payload.insert(packet.payload.begin(), packet.source.begin(), packet.source.end());
    packet.source = {};
  }
}

}  // namespace sim
