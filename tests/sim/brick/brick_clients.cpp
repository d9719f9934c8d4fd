// SPDX-License-Identifier: BSD-3-Clause
// The clients of the brick: their requests, and the beliefs that these justify.
#include <algorithm>
#include <cerrno>

#include "tests/sim/brick/brick_world.hpp"

namespace sim {
namespace {

constexpr auto kCellSize = static_cast<std::uint32_t>(brick::kBlockSize / kCells);

}  // namespace

void BrickWorld::act(SimClient& client) {
  if (client.path == 0) return connect(client);
  if (client.recalled && !client.stubborn && rng_.chance(500)) return give_back(client);
  const std::uint64_t what = rng_.below(100);
  if (what < 10) return alloc();
  if (what < 15) return free();
  if (what < 30) return map(client);
  if (what < 38) return unmap(client, rng_.next(), rng_.chance(700));
  if (what < 58) return write_one_sided(client);
  if (what < 66) return read_one_sided(client);
  if (what < 74) return sync(client);
  if (what < 77) return flush();
  if (what < 82) return list();
  if (what < 83) return leave(client);
  request(rng_.chance(500));
}

void BrickWorld::connect(SimClient& client) {
  if (client.session == 0) client.session = next_++;
  client.path = next_++;
  sessions_[client.path] = client.session;
  brick_->path_up(client.session, client.path);
}

/// It closes the device, and another client may be the writer when it is told so.
void BrickWorld::leave(SimClient& client) {
  const brick::Session session = client.session;
  say("session " + std::to_string(session) + " leaves");
  client = SimClient{.stubborn = client.stubborn};
  const auto ticket = ask([this, session](const brick::Reply& reply) {
    if (reply.error != 0) fail("a session cannot leave");
    for (auto& [map, key] : keys_) {
      if (key.session != session) continue;
      key.ended = true;
      if (key.alive) fail("a key of a session that has left is alive");
    }
  });
  later([this, ticket, session] {
    brick_->leave(ticket, session);
    brick_->session_gone(session);
  });
}

/// The brick hears of it later, or is told by REVOKE PATH before.
void BrickWorld::lose_path(SimClient& client) {
  const brick::Path path = client.path;
  say("path " + std::to_string(path) + " is lost");
  client.path = 0;
  client.maps.clear();
  later([this, path] { brick_->path_gone(path); });
  if (!rng_.chance(700)) return;
  const auto ticket = ask([this, path](const brick::Reply& reply) {
    if (reply.error != 0) fail("REVOKE PATH is refused");
    revoked(path);
  });
  later([this, ticket, path] { brick_->revoke(ticket, path); });
}

/// B2.
void BrickWorld::revoked(brick::Path path) {
  say("path " + std::to_string(path) + " is revoked");
  revoked_.insert(path);
  for (auto& [map, key] : keys_) {
    if (key.path != path) continue;
    key.ended = true;
    if (key.alive) fail("a key of a revoked path is alive");
  }
}

void BrickWorld::alloc() {
  const brick::Block block = some_block();
  if (!lock(block)) return;
  const bool fresh = !truth_.contains(block);
  if (fresh) in_doubt_.insert(block);
  const auto ticket = ask([this, block, fresh](const brick::Reply& reply) {
    locked_.erase(block);
    in_doubt_.erase(block);
    if (reply.error == 0 && !fresh) fail("a block is allocated twice");
    if (reply.error == 0) begin_truth(block);
  });
  later([this, ticket, block] { brick_->alloc(ticket, block, 1, rng_.chance(500)); });
}

std::uint64_t BrickWorld::some_allocated() {
  if (truth_.empty()) return some_block();
  return std::next(truth_.begin(), static_cast<std::ptrdiff_t>(rng_.below(truth_.size())))->first;
}

void BrickWorld::free() {
  const brick::Block block = some_allocated();
  if (!truth_.contains(block) || !lock(block)) return;
  in_doubt_.insert(block);
  const auto ticket = ask([this, block](const brick::Reply& reply) {
    locked_.erase(block);
    in_doubt_.erase(block);
    if (reply.error != 0) return;
    for (const auto& [map, key] : keys_)
      if (key.block == block && key.alive) fail("a block is freed that somebody has mapped");
    truth_.erase(block);
  });
  later([this, ticket, block] { brick_->free(ticket, block, 1, rng_.chance(500)); });
}

void BrickWorld::map(SimClient& client) {
  if (client.under_way != 0) return;
  brick::Brick::MapOrder order;
  order.session = client.session;
  order.path = client.path;
  order.first = some_allocated();
  order.count = rng_.chance(250) ? 2 : 1;
  order.rights = rng_.pick({1U, 2U, 3U, 3U});
  order.rights |= rng_.pick({0U, 0U, 4U, 12U}) | rng_.pick({0U, 0U, 0U, 16U});
  order.number = ++client.number;
  order.settled = client.settled;
  client.under_way = order.number;
  const auto index = static_cast<std::size_t>(&client - clients_.data());
  for (unsigned copies = rng_.pick({1U, 1U, 2U, 3U}); copies > 0; --copies) send_map(index, order);
}

void BrickWorld::send_map(std::size_t client, const brick::Brick::MapOrder& order) {
  const auto ticket =
      ask([this, client, order](const brick::Reply& reply) { mapped(client, order, reply); });
  later([this, ticket, order] { brick_->map(ticket, order); });
}

void BrickWorld::mapped(std::size_t index, const brick::Brick::MapOrder& order,
                        const brick::Reply& reply) {
  SimClient& client = clients_[index];
  const bool first = client.under_way == order.number && client.session == order.session;
  if (reply.error == 0) {
    const bool late = !first && client.session == order.session;
    if (late && client.settled > order.number && order.settled < client.settled &&
        !answered_maps_.contains({order.session, order.number}))
      fail("a late copy of a MAP makes a map");
    if (first && revoked_.contains(order.path)) fail("a revoked path gets a map");
    const auto [told, fresh] =
        answered_maps_.emplace(std::pair{order.session, order.number}, reply.maps);
    const bool same =
        std::equal(reply.maps.begin(), reply.maps.end(), told->second.begin(), told->second.end(),
                   [](const auto& one, const auto& other) { return one.key == other.key; });
    if (!fresh && !same) fail("a MAP is answered with other keys");
  }
  if (!first) return;
  client.under_way = 0;
  client.settled = order.number + 1;
  if (reply.error != 0 || client.path != order.path) return;
  for (const brick::MapView& view : reply.maps) {
    if (!truth_.contains(view.block) && !in_doubt_.contains(view.block))
      fail("a block is mapped that is not allocated");
    for (const auto& [map, other] : keys_) {
      const bool writes = (other.rights & brick::kWrite) != 0;
      if (!other.alive || other.session == order.session || other.block != view.block) continue;
      if (writes && (order.rights & brick::kOthersWrite) == 0)
        fail("a map that excludes writers is given while there is one");
    }
    client.maps.push_back({view.block, view.generation, view.key, order.rights});
  }
}

void BrickWorld::unmap(SimClient& client, std::size_t which, bool drain) {
  if (client.maps.empty()) return;
  const ClientMap map = client.maps[which % client.maps.size()];
  const bool busy = std::any_of(writes_.begin(), writes_.end(),
                                [&](const SimWrite& write) { return write.map == map.key; });
  if (drain && busy) return;
  std::erase_if(client.maps, [&](const ClientMap& other) { return other.key == map.key; });
  for (unsigned copies = rng_.pick({1U, 1U, 2U}); copies > 0; --copies) {
    const auto ticket = ask([this, key = map.key](const brick::Reply& reply) {
      if (reply.error != 0) return;
      if (keys_.at(key).alive) fail("UNMAP is answered while the key is alive");
      keys_.at(key).ended = true;
    });
    later([this, ticket, map, session = client.session] {
      const bool was_ended = !keys_.at(map.key).alive;

      brick_->unmap(ticket, session, map.block, 1, map.generation);
      if (was_ended && tickets_.contains(ticket)) fail("a late UNMAP ends a newer map");
    });
  }
}

void BrickWorld::give_back(SimClient& client) {
  client.recalled = false;
  const auto listed = brick_->list(brick::Listing::recalled, client.session, 0, 100);
  for (const brick::Listed& block : listed) {
    for (std::size_t i = 0; i < client.maps.size(); ++i)
      if (client.maps[i].block == block.block) return unmap(client, i, false);
  }
}

void BrickWorld::write_one_sided(SimClient& client) {
  if (client.maps.empty()) return;
  const ClientMap& map = client.maps[rng_.below(client.maps.size())];
  if ((map.rights & brick::kWrite) == 0) return;
  writes_.push_back({map.key, static_cast<unsigned>(rng_.below(kCells)), next_++});
}

/// The network card looks at the key and nothing else.
void BrickWorld::land(std::size_t which) {
  const SimWrite write = writes_[which];
  writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(which));
  const SimKey& key = keys_.at(write.map);
  if (!key.alive) return;
  if (key.ended) fail("bytes land although the client was told that its map has ended");
  memory_[key.slot][write.cell] = write.value;
  took(key.block, write.cell, write.value);
}

void BrickWorld::read_one_sided(SimClient& client) {
  if (client.maps.empty()) return;
  const ClientMap& map = client.maps[rng_.below(client.maps.size())];
  const SimKey& key = keys_.at(map.key);
  if ((map.rights & brick::kRead) == 0 || !key.alive || !truth_.contains(map.block)) return;
  if (memory_[key.slot] != truth_.at(map.block).now)
    fail("a one-sided read of block " + std::to_string(map.block) + " shows something else");
}

/// From the moment of asking on: what was there, or came later.
void BrickWorld::ask_durable(const std::vector<brick::Block>& blocks, Work order,
                             brick::Ticket ticket) {
  auto& snapshot = syncs_[ticket];
  for (const brick::Block block : blocks) {
    const auto found = truth_.find(block);
    if (found == truth_.end()) continue;
    for (unsigned cell = 0; cell < kCells; ++cell)
      snapshot[block].lasting[cell] = {found->second.now[cell]};
  }
  order();
}

void BrickWorld::sync(SimClient& client) {
  if (client.maps.empty()) return;
  const brick::Block block = client.maps[rng_.below(client.maps.size())].block;
  if (!lock(block)) return;
  const auto cell = static_cast<unsigned>(rng_.below(kCells + 1));
  const bool whole = cell == kCells;
  const auto ticket = next_++;
  tickets_[ticket] = [this, ticket, block, cell, whole](const brick::Reply& reply) {
    locked_.erase(block);
    const auto snapshot = syncs_[ticket];
    syncs_.erase(ticket);
    if (reply.error != 0 || !truth_.contains(block) || !snapshot.contains(block)) return;
    for (unsigned i = 0; i < kCells; ++i)
      if (whole || i == cell) truth_.at(block).lasting[i] = snapshot.at(block).lasting[i];
  };
  later([this, ticket, block, cell, whole] {
    ask_durable(
        {block},
        [&] {
          brick_->sync(ticket,
                       {{block, whole ? 0 : cell * kCellSize,
                         whole ? static_cast<std::uint32_t>(brick::kBlockSize) : kCellSize}});
        },
        ticket);
  });
}

void BrickWorld::flush() {
  const auto ticket = next_++;
  tickets_[ticket] = [this, ticket](const brick::Reply& reply) {
    const auto snapshot = syncs_[ticket];
    syncs_.erase(ticket);
    if (reply.error != 0) return;
    for (const auto& [block, kept] : snapshot)
      if (truth_.contains(block) && !locked_.contains(block))
        truth_.at(block).lasting = kept.lasting;
  };
  std::vector<brick::Block> blocks;
  for (const auto& [block, truth] : truth_)
    if (!locked_.contains(block)) blocks.push_back(block);
  ask_durable(
      blocks, [&] { brick_->flush(ticket); }, ticket);
}

/// The work of a two-sided request at a block that is in memory.
void BrickWorld::touch(brick::Block block, brick::Slot slot, bool write, unsigned cell,
                       std::uint64_t value) {
  if (!write) {
    if (memory_[slot] != truth_.at(block).now)
      fail("a request reads something else in block " + std::to_string(block));
    return;
  }
  memory_[slot][cell] = value;
  dirty_[slot] = 1;
  took(block, cell, value);
}

void BrickWorld::request(bool write) {
  const brick::Block block = rng_.chance(800) ? some_allocated() : some_block();
  if (!lock(block)) return;
  const auto cell = static_cast<unsigned>(rng_.below(kCells));
  const std::uint64_t value = next_++;
  if (const auto found = open_.find(block); found != open_.end()) {
    const brick::Slot slot = found->second;
    ++pins_[block];
    return later([this, block, slot, write, cell, value] {
      touch(block, slot, write, cell, value);
      locked_.erase(block);
      unpin(block);
    });
  }
  if (!truth_.contains(block)) in_doubt_.insert(block);
  const auto ticket = ask([this, block, write, cell, value](const brick::Reply& reply) {
    locked_.erase(block);
    const bool fresh = in_doubt_.erase(block) > 0;
    if (reply.error != 0) return;
    if (reply.slot == brick::kNone) {
      if (!fresh || write) fail("an allocated block is not found");
      return;
    }
    if (fresh) begin_truth(block);
    touch(block, reply.slot, write, cell, value);
  });
  later([this, ticket, block, write] { brick_->fetch(ticket, block, write); });
}

/// B5: LIST tells exactly what a crash would leave.
void BrickWorld::list() {
  std::set<brick::Block> listed;
  for (const auto& one : brick_->list(brick::Listing::allocated, 0, 0, 100))
    listed.insert(one.block);
  std::set<brick::Block> durable;
  for (const brick::Kept& one : replay(log_)) durable.insert(one.block);
  if (listed != durable) fail("LIST tells something else than what is durable");
}

}  // namespace sim
