// SPDX-License-Identifier: BSD-3-Clause
// The surroundings of the brick: memory, tier, log, keys, and what goes wrong.
#include "tests/sim/brick/brick_world.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace sim {
namespace {

constexpr unsigned kHealingSteps = 20000;

}  // namespace

BrickWorld::BrickWorld(std::uint64_t seed, bool trace) : rng_{seed}, trace_{trace} {
  options_.slots = rng_.pick({1U, 2U, 2U, 3U});
  options_.places = options_.slots + rng_.pick({0U, 1U, 2U, 4U});
  options_.max_maps = rng_.pick({1U, 2U, 64U});
  options_.lease = 50;
  blocks_ = options_.places + rng_.pick({0U, 1U, 2U});
  mood_ = {.steps = rng_.pick({200U, 500U, 1000U}),
           .crash = rng_.pick({0U, 3U, 10U, 30U}),
           .lose = rng_.pick({0U, 10U, 50U}),
           .stubborn = rng_.pick({0U, 300U, 700U}),
           .deliver = rng_.pick({300U, 500U, 700U})};
  memory_.resize(options_.slots);
  dirty_.resize(options_.slots);
  cached_.resize(options_.places);
  durable_.resize(options_.places);
  for (Cells& cells : memory_) cells.fill(rng_.next());
  for (Cells& cells : durable_) cells.fill(rng_.next());
  cached_ = durable_;
  clients_.resize(rng_.pick({1U, 2U, 3U}));
  for (SimClient& client : clients_) client.stubborn = rng_.chance(mood_.stubborn);
  start({});
}

void BrickWorld::say(const std::string& text) const {
  if (trace_) std::printf("%s\n", text.c_str());
}

void BrickWorld::start(const std::vector<brick::Record>& log) {
  const auto kept = replay(log);
  check_restart(kept);
  brick_ = std::make_unique<brick::Brick>(options_, kept, *this);
}

void BrickWorld::run() {
  for (unsigned i = 0; i < mood_.steps; ++i) step(true);
  finish();
}

void BrickWorld::step(bool requests) {
  now_ += rng_.below(3);
  brick_->tick(now_);
  if (!events_.empty() && rng_.chance(mood_.deliver)) return deliver();
  if (!writes_.empty() && rng_.chance(300)) return land(rng_.below(writes_.size()));
  if (!requests) return;
  if (rng_.chance(mood_.crash)) return crash();
  SimClient& client = clients_[rng_.below(clients_.size())];
  if (client.path != 0 && rng_.chance(mood_.lose)) return lose_path(client);
  act(client);
}

void BrickWorld::deliver() {
  const std::size_t at = rng_.below(events_.size());
  const Work work = std::move(events_[at]);
  events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(at));
  work();
}

brick::Ticket BrickWorld::ask(Then then) {
  const brick::Ticket ticket = next_++;
  tickets_[ticket] = std::move(then);
  return ticket;
}

void BrickWorld::answer(brick::Ticket ticket, const brick::Reply& reply) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) fail("a ticket is answered twice");
  const Then then = std::move(found->second);
  tickets_.erase(found);
  ++operations_;
  then(reply);
}

void BrickWorld::record(const std::vector<brick::Record>& records) {
  if (!being_recorded_.empty()) fail("two batches of records at a time");
  being_recorded_ = records;
  later([this] {
    log_.insert(log_.end(), being_recorded_.begin(), being_recorded_.end());
    being_recorded_.clear();
    replay(log_);
    brick_->recorded(0);
  });
}

/// The blocks that a program finds when it reads the log.
std::vector<brick::Kept> BrickWorld::replay(const std::vector<brick::Record>& log) const {
  std::map<brick::Block, brick::Kept> blocks;
  std::map<brick::Place, brick::Block> places;
  for (const brick::Record& record : log) {
    switch (record.change) {
      case brick::Record::Change::alloc:
        if (!places.emplace(record.place, record.block).second) fail("a place has two blocks");
        if (!blocks.emplace(record.block, brick::Kept{record.block, record.place, false}).second)
          fail("a block has two places");
        break;
      case brick::Record::Change::free:
        if (blocks.erase(record.block) == 0) fail("a block that is not there is freed");
        places.erase(record.place);
        break;
      case brick::Record::Change::stored:
        if (const auto found = blocks.find(record.block); found != blocks.end())
          found->second.stored = true;
        break;
    }
  }
  std::vector<brick::Kept> kept;
  for (const auto& [block, one] : blocks) kept.push_back(one);
  return kept;
}

void BrickWorld::store(const brick::StoreJob& job) {
  say("store block " + std::to_string(job.span.block) + " slot " + std::to_string(job.slot) +
      " keep " + std::to_string(static_cast<int>(job.keep)));
  if (job.keep != brick::Keep::span) dirty_[job.slot] = 0;
  later([this, job] {
    for (unsigned cell = 0; cell < kCells; ++cell) {
      const bool in_span = job.keep != brick::Keep::span ||
                           job.span.offset / (brick::kBlockSize / kCells) == cell ||
                           job.span.length == brick::kBlockSize;
      if (in_span) cached_[job.place][cell] = memory_[job.slot][cell];
    }
    later([this, job] {
      durable_[job.place] = cached_[job.place];
      brick_->stored(job.job, 0);
    });
  });
}

void BrickWorld::load(brick::Slot slot, brick::Place place, std::uint64_t job) {
  say("load slot " + std::to_string(slot));
  later([this, slot, place, job] {
    memory_[slot] = cached_[place];
    dirty_[slot] = 0;
    brick_->loaded(job, 0);
  });
}

bool BrickWorld::close(brick::Block block) {
  say("close " + std::to_string(block));
  open_.erase(block);
  if (pins_[block] == 0) return true;
  wanted_closed_.insert(block);
  return false;
}

void BrickWorld::unpin(brick::Block block) {
  if (--pins_[block] > 0 || wanted_closed_.erase(block) == 0) return;
  later([this, block] { brick_->released(block); });
}

void BrickWorld::expose(const brick::NewMap& wanted) {
  say("expose block " + std::to_string(wanted.block) + " as " + std::to_string(wanted.map));
  later([this, wanted] {
    SimKey key;
    key.block = wanted.block;
    key.session = sessions_.at(wanted.path);
    key.slot = wanted.slot;
    key.path = wanted.path;
    key.rights = wanted.rights;
    keys_[wanted.map] = key;
    brick_->exposed(wanted.map, static_cast<std::uint32_t>(wanted.map), wanted.map, 0);
  });
}

void BrickWorld::retire(std::uint64_t map) {
  say("retire " + std::to_string(map));
  later([this, map] {
    keys_.at(map).alive = false;
    brick_->retired(map);
  });
}

void BrickWorld::recall(brick::Session session) {
  for (SimClient& client : clients_)
    if (client.session == session) client.recalled = true;
}

void BrickWorld::kill(brick::Path path) {
  for (SimClient& client : clients_) {
    if (client.path != path) continue;
    say("the brick ends path " + std::to_string(path));
    client.path = 0;
    client.maps.clear();
  }
}

/// A block shows another value.
void BrickWorld::took(brick::Block block, unsigned cell, std::uint64_t value) {
  const auto found = truth_.find(block);
  if (found == truth_.end()) fail("bytes land in a block that is not allocated");
  say("block " + std::to_string(block) + " cell " + std::to_string(cell) + " takes " +
      std::to_string(value));
  found->second.now[cell] = value;
  found->second.lasting[cell].insert(value);
  for (auto& [ticket, blocks] : syncs_)
    if (const auto synced = blocks.find(block); synced != blocks.end())
      synced->second.lasting[cell].insert(value);
}

/// Everybody's connections and all that was under way is gone; the log ends somewhere in the batch
/// that was being written, and of the tier's cache anything may be durable.
void BrickWorld::crash() {
  say("the brick crashes");
  const std::size_t written = rng_.below(being_recorded_.size() + 1);
  log_.insert(log_.end(), being_recorded_.begin(),
              being_recorded_.begin() + static_cast<std::ptrdiff_t>(written));
  being_recorded_.clear();
  for (std::size_t place = 0; place < cached_.size(); ++place)
    for (unsigned cell = 0; cell < kCells; ++cell)
      if (rng_.chance(500)) durable_[place][cell] = cached_[place][cell];
  cached_ = durable_;
  events_.clear();
  tickets_.clear();
  writes_.clear();
  keys_.clear();
  open_.clear();
  pins_.clear();
  wanted_closed_.clear();
  syncs_.clear();
  locked_.clear();
  answered_maps_.clear();
  for (Cells& cells : memory_) cells.fill(rng_.next());
  std::fill(dirty_.begin(), dirty_.end(), 0);
  for (SimClient& client : clients_) client = SimClient{.stubborn = client.stubborn};
  start(log_);
}

/// B3 to B5.
void BrickWorld::check_restart(const std::vector<brick::Kept>& kept) {
  std::set<brick::Block> found;
  for (const brick::Kept& block : kept) {
    found.insert(block.block);
    const bool doubtful = in_doubt_.contains(block.block);
    if (!truth_.contains(block.block) && !doubtful) fail("a block is back that was freed");
    BlockTruth& truth = truth_[block.block];
    for (unsigned cell = 0; cell < kCells; ++cell) {
      const std::uint64_t value = block.stored ? durable_[block.place][cell] : 0;
      if (!truth.lasting[cell].contains(value))
        fail("block " + std::to_string(block.block) + " shows " + std::to_string(value) +
             " after a crash");
      truth.now[cell] = value;
      truth.lasting[cell] = {value};
    }
  }
  for (auto it = truth_.begin(); it != truth_.end();) {
    const brick::Block block = it->first;
    if (!found.contains(block) && !in_doubt_.contains(block))
      fail("block " + std::to_string(block) + " is lost after a crash");
    it = found.contains(block) ? std::next(it) : truth_.erase(it);
  }
  in_doubt_.clear();
}

void BrickWorld::finish() {
  say("no requests from now on");
  mood_.deliver = 800;
  for (unsigned i = 0; i < kHealingSteps; ++i) {
    step(false);
    if (events_.empty() && tickets_.empty() && writes_.empty()) return compare();
  }
  fail("an operation never ends");
}

/// Every block, read by requests.
void BrickWorld::compare() {
  for (const auto& [block, truth] : truth_) {
    bool read = false;
    const auto check = [&, number = block](const brick::Reply& reply) {
      read = true;
      if (reply.error != 0 || reply.slot == brick::kNone) fail("a block cannot be read at the end");
      if (memory_[reply.slot] != truth_.at(number).now)
        fail("block " + std::to_string(number) + " is not what was written");
    };
    brick_->fetch(ask(check), block, false);
    for (unsigned i = 0; i < kHealingSteps && !read; ++i) step(false);
    if (!read) fail("a block is never read at the end");
  }
}

}  // namespace sim
