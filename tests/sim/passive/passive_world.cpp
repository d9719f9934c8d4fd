// SPDX-License-Identifier: BSD-3-Clause
// Time, crashes, and the judge.
#include "tests/sim/passive/passive_world.hpp"

#include <algorithm>
#include <cstdio>

namespace sim {
namespace {

constexpr unsigned kHealingSteps = 20000;

}  // namespace

// ---- Registers ---------------------------------------------------------------------------------

void PassiveRegister::end(std::uint64_t value, std::uint64_t now) {
  for (Write& write : writes_)
    if (write.value == value && write.ended == kNever) write.ended = now;
}

/// No other write of it lies wholly behind this one and before that moment.
bool PassiveRegister::is_newest(std::uint64_t value, std::uint64_t before) const {
  return std::ranges::any_of(writes_, [&](const Write& write) {
    return write.value == value && std::ranges::none_of(writes_, [&](const Write& other) {
             return other.begun > write.ended && other.ended < before;
           });
  });
}

bool PassiveRegister::may_show(std::uint64_t value, std::uint64_t asked) const {
  return is_newest(value, asked);
}

void PassiveRegister::restart(std::uint64_t value, std::uint64_t now) {
  std::erase_if(writes_, [](const Write& write) { return write.ended != kNever; });
  writes_.push_back({value, 0, now});
  durable_before_ = 0;
}

// ---- The world ---------------------------------------------------------------------------------

PassiveWorld::PassiveWorld(std::uint64_t seed, bool trace) : rng_{seed}, trace_{trace} {
  options_.slots = rng_.pick({1U, 2U, 3U, 4U});
  blocks_ = rng_.pick({1U, 2U, 3U, 5U});
  options_.places = std::max(options_.slots, static_cast<std::uint32_t>(blocks_)) + 1;
  options_.lease = 60;
  steps_ = rng_.pick({200U, 500U, 1000U});
  crashes_ = rng_.pick({0U, 0U, 3U, 10U});
  losses_ = rng_.pick({0U, 5U, 20U, 50U});
  memory_.resize(options_.slots);
  dirty_.resize(options_.slots);
  cached_.resize(options_.places);
  durable_.resize(options_.places);
  for (PassiveCells& cells : memory_) cells.fill(rng_.next());
  for (PassiveCells& cells : durable_) cells.fill(rng_.next());
  cached_ = durable_;
  registers_.resize(blocks_ * kPassiveCells);
  cache_ = std::make_unique<rnbd::MapCache>(rng_.pick({0U, 1U, 2U, 4U, 4U}));
  start({});
}

void PassiveWorld::say(const std::string& text) const {
  if (trace_) std::printf("%s\n", text.c_str());
}

void PassiveWorld::start(const std::vector<brick::Record>& log) {
  log_ = log;
  brick_ = std::make_unique<brick::Brick>(options_, replay(), *this);
}

void PassiveWorld::run() {
  for (unsigned i = 0; i < steps_; ++i) step(true);
  finish();
}

void PassiveWorld::step(bool requests) {
  ++now_;
  brick_->tick(now_ / 4);
  if (!events_.empty() && rng_.chance(600)) {
    const std::size_t at = rng_.below(events_.size());
    const Work work = std::move(events_[at]);
    events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(at));
    return work();
  }
  if (!hidden_.empty() && rng_.chance(20)) return push_out(hidden_.front().key);
  if (rng_.chance(300)) return work();
  if (!requests) return;
  if (rng_.chance(60)) return rival_acts();
  if (rng_.chance(crashes_)) return crash();
  if (path_alive_ && rng_.chance(losses_)) return lose_path();
  if (requests_.size() < 4) begin_request();
}

/// The server is killed: its memory is gone, of the tier's cache anything may be durable.
void PassiveWorld::crash() {
  say("the server is killed");
  for (std::size_t place = 0; place < cached_.size(); ++place)
    for (unsigned cell = 0; cell < kPassiveCells; ++cell)
      if (rng_.chance(500)) durable_[place][cell] = cached_[place][cell];
  cached_ = durable_;
  events_.clear();
  tickets_.clear();
  waiting_.clear();
  keys_.clear();
  hidden_.clear();
  rival_maps_.clear();
  rival_path_ = 0;
  rival_busy_ = working_ = recalled_ = false;
  path_alive_ = false;
  for (PassiveCells& cells : memory_) cells.fill(rng_.next());
  std::ranges::fill(dirty_, 0);
  start(log_);
  check_restart();
  const auto under_way = requests_;
  for (const RequestPtr& request : under_way) {
    if (request->has_debt)
      end_flush(request, /*error=*/5);
    else if (request->kind == Request::Kind::flush)
      end(request);
    else
      later([this, request] { two_sided(request); });
  }
}

std::vector<brick::Kept> PassiveWorld::replay() const {
  std::map<brick::Block, brick::Kept> blocks;
  for (const brick::Record& record : log_) {
    if (record.change == brick::Record::Change::alloc)
      blocks[record.block] = {record.block, record.place, false};
    if (record.change == brick::Record::Change::free) blocks.erase(record.block);
    const auto found = blocks.find(record.block);
    if (record.change == brick::Record::Change::stored && found != blocks.end())
      found->second.stored = true;
  }
  std::vector<brick::Kept> kept;
  for (const auto& [block, one] : blocks) kept.push_back(one);
  return kept;
}

void PassiveWorld::check_restart() {
  std::map<brick::Block, brick::Kept> kept;
  for (const brick::Kept& one : replay()) kept[one.block] = one;
  for (Block block = 0; block < blocks_; ++block) {
    for (unsigned cell = 0; cell < kPassiveCells; ++cell) {
      const auto found = kept.find(block);
      const bool stored = found != kept.end() && found->second.stored;
      const std::uint64_t value = stored ? durable_[found->second.place][cell] : 0;
      PassiveRegister& is = registers_[block * kPassiveCells + cell];
      if (!is.may_survive(value))
        fail("block " + std::to_string(block) + " cell " + std::to_string(cell) + " shows " +
             std::to_string(value) + " after a crash, which a flush had made durable otherwise");
      is.restart(value, now_);
    }
  }
}

bool PassiveWorld::idle() const {
  return events_.empty() && tickets_.empty() && requests_.empty() && waiting_.empty();
}

void PassiveWorld::finish() {
  say("no requests from now on");
  losses_ = crashes_ = 0;
  for (unsigned i = 0; i < kHealingSteps && !idle(); ++i) step(false);
  if (!idle()) fail("a request never ends");
  for (Block block = 0; block < blocks_; ++block) {
    for (unsigned cell = 0; cell < kPassiveCells; ++cell) {
      auto request = std::make_shared<Request>();
      request->block = block;
      request->cell = cell;
      request->asked = now_;
      requests_.push_back(request);
      carry_out(request);
      for (unsigned i = 0; i < kHealingSteps && !request->ended; ++i) step(false);
      if (!request->ended) fail("a block is never read at the end");
    }
  }
}

}  // namespace sim
