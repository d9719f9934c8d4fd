// SPDX-License-Identifier: BSD-3-Clause
// The surroundings of the brick: memory, tier, log, keys, and another client.
#include <algorithm>

#include "tests/sim/passive/passive_world.hpp"

namespace sim {
brick::Ticket PassiveWorld::ask(Then then) {
  const brick::Ticket ticket = next_++;
  tickets_[ticket] = std::move(then);
  return ticket;
}

void PassiveWorld::answer(brick::Ticket ticket, const brick::Reply& reply) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) fail("a ticket is answered twice");
  const Then then = std::move(found->second);
  tickets_.erase(found);
  ++operations_;
  then(reply);
}

void PassiveWorld::record(const std::vector<brick::Record>& records) {
  later([this, records] {
    log_.insert(log_.end(), records.begin(), records.end());
    brick_->recorded(0);
  });
}

void PassiveWorld::store(const brick::StoreJob& job) {
  if (job.keep != brick::Keep::span) dirty_[job.slot] = 0;
  later([this, job] {
    const std::uint32_t from = job.keep == brick::Keep::span ? job.span.offset : 0;
    const std::uint32_t size = job.keep == brick::Keep::span
                                   ? job.span.length
                                   : static_cast<std::uint32_t>(brick::kBlockSize);
    for (unsigned cell = 0; cell < kPassiveCells; ++cell)
      if (cell * kPassiveCell < from + size && from < (cell + 1) * kPassiveCell)
        cached_[job.place][cell] = memory_[job.slot][cell];
    later([this, job] {
      durable_[job.place] = cached_[job.place];
      brick_->stored(job.job, 0);
    });
  });
}

void PassiveWorld::load(brick::Slot slot, brick::Place place, std::uint64_t job) {
  later([this, slot, place, job] {
    memory_[slot] = cached_[place];
    dirty_[slot] = 0;
    brick_->loaded(job, 0);
  });
}

void PassiveWorld::expose(const brick::NewMap& wanted) {
  later([this, wanted] {
    keys_[wanted.map] = {.slot = wanted.slot, .path = wanted.path, .rights = wanted.rights};
    brick_->exposed(wanted.map, static_cast<std::uint32_t>(wanted.map), wanted.map, 0);
  });
}

/// Bytes that the card has confirmed are in memory when deregistration returns.
void PassiveWorld::retire(std::uint64_t map) {
  later([this, map] {
    push_out(map);
    keys_.at(map).alive = false;
    brick_->retired(map);
  });
}

void PassiveWorld::push_out(std::uint64_t key) {
  for (const Hidden& one : hidden_) {
    if (one.key != key) continue;
    memory_[keys_.at(key).slot][one.cell] = one.value;
    say("value " + std::to_string(one.value) + " is seen by the processor");
  }
  std::erase_if(hidden_, [key](const Hidden& one) { return one.key == key; });
}

void PassiveWorld::push_out_path(brick::Path path) {
  const auto hidden = hidden_;
  for (const Hidden& one : hidden)
    if (keys_.at(one.key).path == path) push_out(one.key);
}

/// A read over the same path sees what the path has written.
std::uint64_t PassiveWorld::seen_one_sided(const Key& key, brick::Path path, unsigned cell) const {
  std::uint64_t value = memory_[key.slot][cell];
  for (const Hidden& one : hidden_) {
    const Key& other = keys_.at(one.key);
    if (other.path == path && other.slot == key.slot && one.cell == cell) value = one.value;
  }
  return value;
}

/// A client that keeps the rules uses no other keys as long as its path lives.
PassiveWorld::Key& PassiveWorld::usable(std::uint64_t number, std::uint32_t right) {
  const auto found = keys_.find(number);
  if (found == keys_.end() || found->second.path != path_) fail("a key of another path is used");
  Key& key = found->second;
  if (key.unmapping || !key.alive) fail("a key is used whose end its client has asked for");
  if ((key.rights & right) == 0) fail("a key is used for something else than it allows");
  return key;
}

void PassiveWorld::recall(brick::Session session) {
  if (session == kUsers) recalled_ = true;
  if (session != kRival || rng_.chance(100)) return;
  later([this] {
    if (rival_maps_.empty()) return;
    const auto map = rival_maps_.front();
    rival_maps_.erase(rival_maps_.begin());
    brick_->unmap(ask([](const brick::Reply&) {}), kRival, map.block, 1, map.generation);
  });
}

void PassiveWorld::kill(brick::Path path) {
  if (path == path_ && path_alive_) lose_path();
  if (path != rival_path_) return;
  rival_path_ = 0;
  rival_maps_.clear();
}

/// It reads, and lets others do what they want.
void PassiveWorld::rival_acts() {
  if (rival_busy_) return;
  if (rival_path_ == 0) return brick_->path_up(kRival, rival_path_ = next_++);
  if (!rival_maps_.empty() && rng_.chance(500)) {
    const auto map = rival_maps_.front();
    rival_maps_.erase(rival_maps_.begin());
    return later([this, map] {
      brick_->unmap(ask([](const brick::Reply&) {}), kRival, map.block, 1, map.generation);
    });
  }
  brick::Brick::MapOrder order;
  order.session = kRival;
  order.path = rival_path_;
  order.first = rng_.below(blocks_);
  order.rights = brick::kRead | brick::kOthersRead | brick::kOthersWrite;
  order.number = order.settled = ++rival_number_;
  rival_busy_ = true;
  later([this, order] {
    brick_->map(ask([this, order](const brick::Reply& reply) {
                  rival_busy_ = false;
                  if (rival_path_ == order.path)
                    rival_maps_.insert(rival_maps_.end(), reply.maps.begin(), reply.maps.end());
                }),
                order);
  });
}

}  // namespace sim
