// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/wire.hpp"

#include <algorithm>
#include <utility>

#include "tests/sim/sim_queue_pair.hpp"

namespace sim {
namespace {

constexpr std::size_t kHeader = 32;  ///< bytes of a message beside its payload

}  // namespace

Wire::Wire(World& world, const NetworkKnobs& knobs, std::uint64_t session, std::uint16_t cid,
           Accept accept)
    : world_{world},
      knobs_{knobs},
      session_{session},
      cid_{cid},
      accept_{std::move(accept)},
      scope_{world, 0},
      last_carried_{world.now()} {}

bool Wire::full(Side from) const {
  return knobs_.stream && under_way_[index(from)] >= knobs_.window;
}

void Wire::carry(Side from, Packet packet) {
  const std::size_t i = index(from);
  ++under_way_[i];
  const bool is_request =
      from == Side::client && packet.kind == Packet::Kind::write && !packet.payload.empty();
  if (keeps_copies_ && is_request && !packet.stale) copy_ = packet;
  meet_obstacle(from, packet);
  if (silent_[i]) return lose(from);
  const std::size_t bytes = packet.payload.size() + kHeader;
  flight_[i].push_back(std::move(packet));
  scope_.after(schedule(from, bytes) - world_.now(), [this, from] { deliver(from); });
}

/// When so many bytes, sent now, have arrived behind all others.
Instant Wire::schedule(Side from, std::size_t bytes) {
  constexpr Duration kRemembered = 10s;
  const std::size_t i = index(from);
  const Duration latency = world_.rng().delay(knobs_.latency_min, knobs_.latency_max);
  const Instant begin = std::max(last_arrival_[i], world_.now() + latency);
  const std::uint64_t us = knobs_.rate == 0 ? 0 : bytes * 1'000'000 / knobs_.rate;
  last_arrival_[i] = begin + std::chrono::microseconds{us};
  // Messages that are sent in a silence pass behind it, as fast as the network is.
  if (world_.now() < hushed_until_) hushed_until_ = std::max(hushed_until_, last_arrival_[i]);
  auto& passages = passages_[i];
  passages.push_back({begin, last_arrival_[i], bytes});
  while (passages.front().end + kRemembered < world_.now()) {
    passed_[i] += passages.front().bytes;
    passages.pop_front();
  }
  return last_arrival_[i];
}

std::uint64_t Wire::carried(Instant at) const {
  at = std::min(at, silent_since_);
  std::uint64_t bytes = passed_[0] + passed_[1];
  for (const auto& passages : passages_) {
    for (const Passage& passage : passages) {
      if (passage.begin >= at) break;
      if (passage.end <= at) {
        bytes += passage.bytes;
      } else if (knobs_.stream) {
        bytes += static_cast<std::uint64_t>((at - passage.begin).count()) * passage.bytes /
                 static_cast<std::uint64_t>((passage.end - passage.begin).count());
      }
    }
  }
  return bytes;
}

/// A packet that is lost here stays lost until the connection is closed.
void Wire::meet_obstacle(Side from, const Packet& packet) {
  const bool idle = cid_ != 0 && obstacle_.idle_max > Duration::zero() &&
                    world_.now() - last_carried_ > obstacle_.idle_max;
  const bool large = packet.payload.size() > obstacle_.largest[index(from)];
  last_carried_ = world_.now();
  if ((large || idle) && !silent_[index(from)]) silence(from);
  if (idle && !silent_[index(other(from))]) silence(other(from));
}

std::optional<Instant> Wire::acknowledged(Side from) {
  const std::size_t i = index(from);
  if (last_arrival_[i] <= world_.now() && !breaking_[i]) return world_.now();
  if (over_ || breaking_[i]) return {};
  return last_arrival_[i] + world_.rng().delay(knobs_.latency_min, knobs_.latency_max);
}

bool Wire::has_stale_copy() const {
  const SimQueuePair* server = ends_[index(Side::server)];
  return copy_ && server != nullptr && server->is_over(copy_->to.key);
}

void Wire::send_stale_copy() {
  world_.note("wire", session_, "carries a stale copy", cid_, copy_->to.key);
  Packet packet = *copy_;
  packet.stale = true;
  carry(Side::client, std::move(packet));
}

void Wire::deliver(Side from) {
  const std::size_t i = index(from);
  if (flight_[i].empty()) return;  // cut
  if (from == Side::client && world_.now() < late_until_) {
    return scope_.after(late_until_ - world_.now(), [this, from] { deliver(from); });
  }
  Packet packet = std::move(flight_[i].front());
  flight_[i].pop_front();
  if (silent_[i]) return lose(from);
  SimQueuePair* receiver = ends_[index(other(from))];
  if (receiver != nullptr) {
    const bool cuts =
        cuts_behind_request_ && from == Side::client && packet.kind == Packet::Kind::write;
    receiver->arrive(std::move(packet));
    if (cuts && !over_) cut();
  } else if (packet.kind == Packet::Kind::record && from == Side::client) {
    accept_(shared_from_this(), packet.payload);
  }
}

void Wire::taken(Side by) {
  const Side from = other(by);
  if (under_way_[index(from)] > 0) --under_way_[index(from)];
  if (SimQueuePair* sender = ends_[index(from)]) sender->pump();
}

/// Something sent is never acknowledged: the sender's transport gives up at last.
void Wire::lose(Side from) {
  const std::size_t i = index(from);
  if (std::exchange(breaking_[i], true)) return;
  scope_.after(knobs_.transport_timeout, [this, i] {
    if (ends_[i] != nullptr) ends_[i]->arrive({.kind = Packet::Kind::end});
  });
}

void Wire::close(Side side) {
  ends_[index(side)] = nullptr;
  over_ = true;
  end(side);
}

/// Some of what is under way still arrives, in order, and then the end.
void Wire::end(Side from) {
  auto& flight = flight_[index(from)];
  if (prompt_ && from == Side::client) flight.clear();
  if (world_.rng().chance(300)) flight.resize(world_.rng().below(flight.size() + 1));
  carry(from, {.kind = Packet::Kind::end});
}

void Wire::cut() {
  over_ = true;
  world_.note("wire", session_, "cut", cid_);
  end(Side::client);
  end(Side::server);
}

void Wire::cut_late(Duration lag) {
  if (prompt_) return cut();
  over_ = true;
  world_.note("wire", session_, "cut, with much under way", cid_,
              static_cast<std::uint64_t>(lag.count()));
  late_until_ = world_.now() + lag;
  end(Side::server);
}

void Wire::stall(Duration time) {
  world_.note("wire", session_, "stalls", cid_, static_cast<std::uint64_t>(time.count()));
  touched_ = true;
  for (Instant& arrival : last_arrival_) arrival = std::max(arrival, world_.now() + time);
}

void Wire::hush(Side from, Duration time) {
  world_.note("wire", session_, "says nothing for a while", cid_, index(from),
              static_cast<std::uint64_t>(time.count()));
  Instant& arrival = last_arrival_[index(from)];
  arrival = std::max(arrival, world_.now() + time);
  hushed_until_ = std::max(hushed_until_, arrival);
  if (from != Side::server) return;
  if (world_.now() >= mute_until_) mute_at_ = world_.now();
  mute_until_ = std::max(mute_until_, arrival);
}

std::optional<Instant> Wire::mute_since() const {
  if (world_.now() >= mute_until_) return std::nullopt;
  return mute_at_;
}

void Wire::set_obstacle(const Obstacle& obstacle) {
  obstacle_ = obstacle;
  touched_ = true;
}

void Wire::silence(Side from) {
  world_.note("wire", session_, "silent", cid_, index(from));
  silent_[index(from)] = true;
  silent_since_ = std::min(silent_since_, world_.now());
}

}  // namespace sim
