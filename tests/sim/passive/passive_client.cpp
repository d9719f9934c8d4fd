// SPDX-License-Identifier: BSD-3-Clause
// The users of the disk. Their decisions are the shipped ones of rnbd::MapCache and
// rnbd::FlushDebt; this does what rnbd::PassiveDisk and rnbd::PassiveBrick do with threads.
#include <algorithm>

#include "tests/sim/passive/passive_world.hpp"

namespace sim {
namespace {

using rnbd::MapCache;

constexpr MapCache::Block kLast = ~MapCache::Block{0};

}  // namespace

void PassiveWorld::begin_request() {
  auto request = std::make_shared<Request>();
  const std::uint64_t what = rng_.below(100);
  request->block = rng_.below(blocks_);
  request->cell = static_cast<unsigned>(rng_.below(kPassiveCells));
  request->asked = now_;
  if (what < 45) request->kind = Request::Kind::read;
  if (what >= 45 && what < 92) request->kind = Request::Kind::write;
  if (what >= 92) request->kind = Request::Kind::flush;
  if (request->kind == Request::Kind::write) {
    request->value = next_++;
    cell_of(*request).begin(request->value, now_);
  }
  requests_.push_back(request);
  carry_out(request);
}

void PassiveWorld::carry_out(const RequestPtr& request) {
  if (request->kind == Request::Kind::flush) return flush(request);
  const bool write = request->kind == Request::Kind::write;
  const MapCache::Pin pin = path_alive_ ? cache_->enter(request->block, write) : nullptr;
  pin != nullptr ? one_sided(request, pin) : two_sided(request);
}

void PassiveWorld::one_sided(const RequestPtr& request, const MapCache::Pin& pin) {
  const bool write = request->kind == Request::Kind::write;
  later([this, write, request, pin, path = path_] {
    write ? write_one_sided(request, pin, path) : read_one_sided(request, pin, path);
  });
  // The end of the path is told at another moment than the bytes land.
  if (write) later([this, request, pin, path = path_] { watch_write(request, pin, path); });
}

void PassiveWorld::give_up_one_sided(const RequestPtr& request, const MapCache::Pin& pin) {
  if (cache_->leave(pin)) wake();
  two_sided(request);
}

void PassiveWorld::read_one_sided(const RequestPtr& request, const MapCache::Pin& pin,
                                  brick::Path path) {
  if (!lives(path)) return give_up_one_sided(request, pin);
  const Key& key = usable(pin->map.where.key, brick::kRead);
  later([=, this, value = seen_one_sided(key, path, request->cell)] {
    if (!lives(path)) return give_up_one_sided(request, pin);
    if (cache_->leave(pin)) wake();
    end_read(request, value);
  });
}

/// However its path ends, what is under way lands as long as the key lives.
void PassiveWorld::write_one_sided(const RequestPtr& request, const MapCache::Pin& pin,
                                   brick::Path path) {
  const std::uint64_t key = pin->map.where.key;
  if (lives(path)) usable(key, brick::kWrite);
  if (!keys_.at(key).alive) return;
  hidden_.push_back({key, request->cell, request->value});
  say("value " + std::to_string(request->value) + " lands");
  later([=, this] {
    if (!lives(path)) return;
    if (cache_->leave(pin)) wake();
    debt_.owe(request->block, request->cell * kPassiveCell, (request->cell + 1) * kPassiveCell);
    end(request);
  });
}

void PassiveWorld::watch_write(const RequestPtr& request, const MapCache::Pin& pin,
                               brick::Path path) {
  if (request->ended) return;
  if (!lives(path)) return give_up_one_sided(request, pin);
  later([=, this] { watch_write(request, pin, path); });
}

void PassiveWorld::before_two_sided(Block first, Block last, const Work& then) {
  const MapCache::Duty duty = cache_->before_two_sided(first, last, path_alive_);
  if (duty.before == MapCache::Before::go) return then();
  if (duty.before == MapCache::Before::wait)
    return waiting_.push_back([=, this] { before_two_sided(first, last, then); });
  later([=, this, pin = duty.pin, path = path_] {
    const bool reads = lives(path);
    if (reads) usable(pin->map.where.key, brick::kRead);
    if (reads) push_out_path(path);
    if (cache_->leave(pin)) wake();
    reads ? then() : before_two_sided(first, last, then);
  });
}

void PassiveWorld::two_sided(const RequestPtr& request) {
  before_two_sided(request->block, request->block, [this, request] { send(request); });
}

/// As rnbd::BrickQueue does it.
void PassiveWorld::send(const RequestPtr& request) {
  const bool write = request->kind == Request::Kind::write;
  later([this, request, write] {
    const auto ticket = ask([this, request, write](const brick::Reply& reply) {
      if (reply.error != 0) fail("a request fails with errno " + std::to_string(reply.error));
      std::uint64_t value = 0;
      if (write) {
        memory_[reply.slot][request->cell] = request->value;
        dirty_[reply.slot] = 1;
      } else if (reply.slot != brick::kNone) {
        value = memory_[reply.slot][request->cell];
      }
      later([this, request, write, value] {
        if (!write) return end_read(request, value);
        debt_.owe_unknown();
        cache_->allow_writes(true);
        end(request);
      });
    });
    brick_->fetch(ticket, request->block, write);
  });
}

void PassiveWorld::end(const RequestPtr& request) {
  request->ended = true;
  if (request->kind == Request::Kind::write) cell_of(*request).end(request->value, now_);
  std::erase(requests_, request);
}

void PassiveWorld::end_read(const RequestPtr& request, std::uint64_t value) {
  say("block " + std::to_string(request->block) + " shows " + std::to_string(value));
  if (!cell_of(*request).may_show(value, request->asked))
    fail("a read of block " + std::to_string(request->block) + " cell " +
         std::to_string(request->cell) + " shows " + std::to_string(value) +
         ", which had been overwritten");
  end(request);
}

// ---- Flush -------------------------------------------------------------------------------------

void PassiveWorld::flush(const RequestPtr& request) {
  if (flushing_) return waiting_.push_back([this, request] { flush(request); });
  flushing_ = request->has_debt = true;
  request->debt = debt_.take();
  before_two_sided(0, kLast, [this, request] { send_flush(request); });
}

void PassiveWorld::send_flush(const RequestPtr& request) {
  later([this, request] {
    const auto ticket =
        ask([this, request](const brick::Reply& reply) { end_flush(request, reply.error); });
    if (rng_.chance(50)) return answer(ticket, {.error = 5});  // its disk fails
    if (request->debt.unknown) return brick_->flush(ticket);
    std::vector<brick::Span> spans;
    for (const auto& [block, range] : request->debt.ranges)
      spans.push_back({block, range.begin, range.end - range.begin});
    brick_->sync(ticket, spans);
  });
}

void PassiveWorld::end_flush(const RequestPtr& request, int error) {
  flushing_ = request->has_debt = false;
  if (error != 0) debt_.give_back(request->debt);
  if (error == 0)
    for (PassiveRegister& one : registers_) one.flushed(request->asked);
  end(request);
  wake();
}

// ---- Maps --------------------------------------------------------------------------------------

void PassiveWorld::wake() {
  const auto waiting = std::exchange(waiting_, {});
  for (const Work& work : waiting) later(work);
}

void PassiveWorld::lose_path() {
  say("the memory path is lost");
  path_alive_ = false;
  later([this, path = path_] { brick_->path_gone(path); });
}

/// First the keys die, then the bytes are everybody's.
void PassiveWorld::recover() {
  if (revoked_) {
    path_ = next_++;
    path_alive_ = true;
    revoked_ = false;
    say("memory path " + std::to_string(path_));
    return brick_->path_up(kUsers, path_);
  }
  working_ = true;
  later([this] {
    const auto ticket = ask([this](const brick::Reply& reply) {
      if (reply.error != 0) fail("REVOKE PATH is refused");
      for (const auto& [map, key] : keys_)
        if (key.path == path_ && key.alive) fail("a key of a revoked path is alive");
      working_ = false;
      revoked_ = true;
      cache_->clear();
      wake();
    });
    brick_->revoke(ticket, path_);
  });
}

void PassiveWorld::work() {
  if (working_) return;
  if (!path_alive_) return recover();
  if (std::exchange(recalled_, false)) {
    for (const auto& one : brick_->list(brick::Listing::recalled, kUsers, 0, 100))
      cache_->recall(one.block);
  }
  if (const MapCache::Pin pin = cache_->next_leaver()) {
    working_ = true;
    keys_.at(pin->map.where.key).unmapping = true;
    return later([this, pin] {
      const auto ticket = ask([this, pin](const brick::Reply& reply) {
        working_ = false;
        if (pin->state == MapCache::Entry::State::gone) return;
        if (reply.error == 0) {
          cache_->unmapped(pin);
        } else {
          cache_->kept(pin);
          if (path_alive_) lose_path();
        }
        wake();
      });
      brick_->unmap(ticket, kUsers, pin->block(), 1, pin->map.generation);
    });
  }
  const auto wish = cache_->next_wish();
  if (!wish) return;
  working_ = true;
  brick::Brick::MapOrder order;
  order.session = kUsers;
  order.path = path_;
  order.first = *wish;
  order.rights = cache_->allows_writes() ? brick::kRead | brick::kWrite | brick::kOthersRead
                                         : brick::kRead | brick::kOthersRead | brick::kOthersWrite;
  order.number = order.settled = ++number_;
  later([this, order] {
    brick_->map(ask([this, order](const brick::Reply& reply) {
                  working_ = false;
                  if (reply.error != 0) return cache_->refused(order.first);
                  const brick::MapView& view = reply.maps.front();
                  cache_->mapped({.id = view.block * brick::kBlockSize,
                                  .generation = view.generation,
                                  .where = {view.address, view.key},
                                  .rights = view.rights,
                                  .path = nullptr});
                }),
                order);
  });
}

}  // namespace sim
