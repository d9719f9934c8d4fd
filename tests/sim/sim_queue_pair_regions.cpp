// SPDX-License-Identifier: BSD-3-Clause
// The simulated queue pair's reads and writes of regions, which the peer's device carries out.
#include <cstring>
#include <utility>

#include "tests/sim/sim_queue_pair.hpp"

namespace sim {

rtrs::Ticket SimQueuePair::read(rtrs::RemoteMemory from, rtrs::MutableBytes into) {
  if (reads_.size() == kMaxUnconfirmed) violate("more reads are under way than may be");
  const rtrs::Ticket ticket = post(
      {.kind = Packet::Kind::read, .to = from, .length = static_cast<std::uint32_t>(into.size())});
  reads_.push_back({ticket, into, false});
  return ticket;
}

/// A read of nothing behind it: its answer comes when the write has landed.
rtrs::Ticket SimQueuePair::write_confirmed(rtrs::RemoteMemory to, rtrs::ConstBytes data) {
  write(to, data);
  return read({}, {});
}

/// As the hardware does: nothing lands, and the queue pair has failed.
void SimQueuePair::refuse(const Packet& packet) {
  world_.note(side_ == Side::client ? "to-clt" : "to-srv", wire_->session(), "refuses an access",
              wire_->cid(), packet.to.key);
  refused_ = true;
}

void SimQueuePair::place_in_region(Packet& packet, std::size_t upto) {
  std::byte* const target =
      options_.regions->find(packet.to, packet.payload.size(), rtrs::kRegionWrite);
  if (target == nullptr) return refuse(packet);
  std::memcpy(target + packet.landed, packet.payload.data() + packet.landed, upto - packet.landed);
  packet.landed = static_cast<std::uint32_t>(upto);
}

void SimQueuePair::answer_read(const Packet& packet) {
  Packet answer{.kind = Packet::Kind::read_data};
  if (packet.length > 0) {
    const std::byte* const source =
        options_.regions == nullptr
            ? nullptr
            : options_.regions->find(packet.to, packet.length, rtrs::kRegionRead);
    if (source == nullptr) return refuse(packet);
    answer.payload.assign(source, source + packet.length);
  }
  wire_->carry(side_, std::move(answer));
}

void SimQueuePair::land_read(const Packet& packet) {
  for (Read& read : reads_) {
    if (read.landed) continue;
    if (read.into.size() != packet.payload.size()) violate("a read was answered with other bytes");
    if (!packet.payload.empty()) {
      std::memcpy(read.into.data(), packet.payload.data(), packet.payload.size());
    }
    read.landed = true;
    return;
  }
  violate("a read was answered that nobody asked for");
}

rtrs::Complaint SimQueuePair::end_read(rtrs::QueuePairHandler& handler) {
  const rtrs::Ticket ticket = reads_.front().ticket;
  reads_.pop_front();
  return handler.on_done(ticket);
}

}  // namespace sim
