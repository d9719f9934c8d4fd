// SPDX-License-Identifier: BSD-3-Clause
// The blocks in memory, those that come from the tier, and those that leave for it.
#include <algorithm>
#include <cerrno>

#include "bridge/backend/brick/brick.hpp"

namespace rnbd::brick {
namespace {

/// Blocks that leave memory at a time.
constexpr unsigned kMaxLeaving = 4;

}  // namespace

bool Brick::in_memory(const Entry& entry) const {
  return entry.state == State::memory || entry.state == State::clean;
}

/// Operations that find their blocks in memory go first, so that the blocks do not leave again.
void Brick::wake() {
  if (waking_) {
    wake_again_ = true;
    return;
  }
  waking_ = true;
  do {
    wake_again_ = false;
    for (const bool ready_only : {true, false}) {
      const std::vector<Ticket> tickets(waiting_.begin(), waiting_.end());
      for (const Ticket ticket : tickets) run(ticket, ready_only);
    }
    write_out();
  } while (wake_again_);
  waking_ = false;
}

void Brick::run(Ticket ticket, bool ready_only) {
  const auto found = operations_.find(ticket);
  if (found == operations_.end() || found->second.begun) return;
  Operation& operation = found->second;
  if (operation.kind == Operation::Kind::map) return run_map(ticket, operation, ready_only);
  run_fetch(ticket, operation, ready_only);
}

void Brick::give_up(Ticket ticket, int error) {
  const auto found = operations_.find(ticket);
  std::erase(waiting_, ticket);
  if (found->second.kind == Operation::Kind::map) {
    found->second.error = error;
    return answer_map(ticket, found->second);
  }
  operations_.erase(found);
  host_.answer(ticket, Reply{.error = error});
}

/// Only the first map in the row holds blocks while it waits: two could wait for each other.
void Brick::run_map(Ticket ticket, Operation& operation, bool ready_only) {
  const MapOrder order = operation.order;
  if (const int error = may_map(order); error != 0) return give_up(ticket, error);
  const auto first_map = std::find_if(waiting_.begin(), waiting_.end(), [&](Ticket other) {
    return operations_.at(other).kind == Operation::Kind::map;
  });
  bool ready = true;
  for (Block block = order.first; block < order.first + order.count; ++block) {
    Entry& entry = entries_.at(block);
    Bring state = in_memory(entry) ? Bring::ready : Bring::waits;
    if (state != Bring::ready && !ready_only && *first_map == ticket) state = bring(block, entry);
    if (state == Bring::full) {
      recall_for(order.session);
      return give_up(ticket, EAGAIN);
    }
    if (state == Bring::ready && *first_map == ticket) hold(block, operation);
    ready = ready && state == Bring::ready;
  }
  if (!ready) return;
  for (Block block = order.first; block < order.first + order.count; ++block)
    hold(block, operation);
  std::erase(waiting_, ticket);
  make_keys(ticket, operation);
}

void Brick::fetch(Ticket ticket, Block block, bool write) {
  Operation& operation = operations_[ticket];
  operation.kind = Operation::Kind::fetch;
  operation.write = write;
  operation.order.first = block;
  waiting_.push_back(ticket);
  wake();
}

void Brick::run_fetch(Ticket ticket, Operation& operation, bool ready_only) {
  const Block block = operation.order.first;
  auto found = entries_.find(block);
  if (found == entries_.end() && !operation.write) {
    std::erase(waiting_, ticket);
    operations_.erase(ticket);
    return host_.answer(ticket, Reply{});
  }
  if (found == entries_.end()) {
    const int error = broken_ != 0 ? broken_ : alloc_one(block, 0);
    if (error != 0) give_up(ticket, error);
    return;
  }
  Entry& entry = found->second;
  if (!entry.recorded && broken_ != 0) return give_up(ticket, broken_);
  if (!entry.recorded || entry.freeing) return;
  if (!in_memory(entry)) {
    if (ready_only) return;
    const Bring state = bring(block, entry);
    if (state == Bring::full) recall_for(0);
    if (state != Bring::ready) return;
  }
  touch(block, entry);
  Reply reply;
  reply.slot = entry.slot;
  std::erase(waiting_, ticket);
  operations_.erase(ticket);
  host_.answer(ticket, reply);
}

/// Those that wait for the block, or for memory.
void Brick::fail_waiting(Block block, int error, bool all) {
  const std::vector<Ticket> tickets(waiting_.begin(), waiting_.end());
  for (const Ticket ticket : tickets) {
    const auto found = operations_.find(ticket);
    if (found == operations_.end()) continue;
    const MapOrder& order = found->second.order;
    if (all || (block >= order.first && block - order.first < order.count)) give_up(ticket, error);
  }
}

void Brick::fill(Block block, Entry& entry, Slot slot) {
  entry.slot = slot;
  touch(block, entry);
  if (entry.stored) {
    entry.state = State::coming;
    const std::uint64_t job = next_++;
    jobs_[job] = {Job::Kind::load, block, 0, false};
    return host_.load(slot, entry.place, job);
  }
  host_.zero(slot);  // B3
  entry.state = State::memory;
  host_.open(block, slot);
}

Brick::Bring Brick::bring(Block block, Entry& entry) {
  if (entry.state == State::coming || entry.state == State::leaving) return Bring::waits;
  if (free_slots_.empty() && !evict_one()) return leaving_ > 0 ? Bring::waits : Bring::full;
  if (free_slots_.empty()) return Bring::waits;
  const Slot slot = free_slots_.front();
  free_slots_.pop_front();
  fill(block, entry, slot);
  return in_memory(entry) ? Bring::ready : Bring::waits;
}

/// B1: a mapped block stays where it is.
bool Brick::may_evict(Block block, Entry& entry) {
  if (!in_memory(entry) || !entry.maps.empty() || entry.holds > 0 || entry.storing > 0 ||
      entry.freeing || !entry.recorded)
    return false;
  return host_.close(block);
}

/// Evicts the least recently used block. False: no block can leave, or enough blocks are leaving.
bool Brick::evict_one() {
  if (leaving_ >= kMaxLeaving) return false;
  bool in_use = false;
  for (const auto& [used, block] : by_use_) {
    Entry& entry = entries_.at(block);
    if (may_evict(block, entry)) {
      evict(block, entry);
      return true;
    }
    in_use = in_use || (entry.maps.empty() && entry.holds == 0);
  }
  return in_use || something_moves();
}

/// True if memory will become free, or can be taken, without a recall of maps.
bool Brick::something_moves() const {
  return !jobs_.empty() || std::any_of(maps_.begin(), maps_.end(), [](const auto& item) {
    return item.second.state != Map::State::live;
  });
}

void Brick::touch(Block block, Entry& entry) {
  by_use_.erase({entry.used, block});
  entry.used = ++stamp_;
  by_use_.insert({entry.used, block});
}

void Brick::evict(Block block, Entry& entry) {
  const bool changed = entry.unkept || host_.dirty(entry.slot);
  if (!changed) return left_memory(block, entry, entry.stored ? State::slow : State::empty);
  const bool whole = entry.unkept || !entry.stored;
  entry.state = State::leaving;
  entry.unkept = false;
  ++leaving_;
  const std::uint64_t job = next_++;
  jobs_[job] = {Job::Kind::evict, block, 0, whole};
  host_.store({job, entry.slot, entry.place, whole ? Keep::whole : Keep::dirty, {block, 0, 0}});
}

void Brick::left_memory(Block block, Entry& entry, State state) {
  by_use_.erase({entry.used, block});
  free_slots_.push_back(entry.slot);
  entry.slot = kNone;
  entry.state = state;
}

void Brick::stored(std::uint64_t id, int error) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  const Job job = found->second;
  jobs_.erase(found);
  if (job.kind == Job::Kind::sync) {
    synced(job, error);
  } else {
    Entry& entry = entries_.at(job.block);
    const bool first = error == 0 && !entry.stored;
    if (first)
      append({Record::Change::stored, entry.place, job.block}, 0);
    else
      evicted(job.block, error);
  }
  write_out();
  wake();
}

/// B1, and the slot is free only when the tier and its record are durable.
void Brick::evicted(Block block, int error) {
  Entry& entry = entries_.at(block);
  --leaving_;
  entry.unkept = entry.unkept || error != 0;
  const bool wanted = error != 0 || entry.holds > 0;
  if (wanted) {
    entry.state = error != 0 ? State::memory : State::clean;
    host_.open(block, entry.slot);
  } else {
    left_memory(block, entry, State::slow);
  }
  go_on_freeing(block);
  if (error != 0) fail_waiting(block, error, true);
}

void Brick::loaded(std::uint64_t id, int error) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  const Block block = found->second.block;
  jobs_.erase(found);
  Entry& entry = entries_.at(block);
  if (error != 0) {
    left_memory(block, entry, State::slow);
    fail_waiting(block, error, false);
  } else {
    entry.state = State::clean;
    host_.open(block, entry.slot);
  }
  go_on_freeing(block);
  wake();
}

/// False: there is nothing to store.
bool Brick::store_part(Block block, Entry& entry, Keep keep, const Span& span, Ticket ticket) {
  if (!in_memory(entry) && entry.state != State::leaving) return false;
  if (!entry.stored) keep = Keep::whole;
  ++entry.holds;
  ++entry.storing;
  ++operations_.at(ticket).left;
  const std::uint64_t job = next_++;
  jobs_[job] = {Job::Kind::sync, block, ticket, keep == Keep::whole};
  host_.store({job, entry.slot, entry.place, keep, span});
  return true;
}

/// B4.
void Brick::synced(const Job& job, int error) {
  Entry& entry = entries_.at(job.block);
  --entry.holds;
  if (error == 0 && !entry.stored)
    append({Record::Change::stored, entry.place, job.block}, job.ticket);
  else
    --entry.storing;
  if (error != 0) entry.unkept = true;
  go_on_freeing(job.block);
  part_done(job.ticket, error);
}

void Brick::sync(Ticket ticket, const std::vector<Span>& spans) {
  const bool known = std::all_of(spans.begin(), spans.end(), [&](const Span& span) {
    const auto found = entries_.find(span.block);
    return found != entries_.end() && found->second.recorded && !found->second.freeing;
  });
  if (!known) return host_.answer(ticket, Reply{.error = ENOENT});
  Operation& operation = begin(ticket);
  operation.error = broken_;
  for (const Span& span : spans)
    store_part(span.block, entries_.at(span.block), Keep::span, span, ticket);
  end_part(ticket);
}

void Brick::sync_maps(Ticket ticket, Session session) {
  std::vector<Span> spans;
  for (const auto& [id, map] : maps_) {
    if (map.session == session && (map.rights & kWrite) != 0)
      spans.push_back({map.block, 0, static_cast<std::uint32_t>(kBlockSize)});
  }
  sync(ticket, spans);
}

void Brick::flush(Ticket ticket) {
  Operation& operation = begin(ticket);
  operation.error = broken_;
  for (const auto& [used, block] : by_use_) {
    Entry& entry = entries_.at(block);
    const bool there = in_memory(entry) || entry.state == State::leaving;
    if (!there || entry.freeing) continue;
    const bool under_way = entry.state == State::leaving || entry.storing > 0;
    const bool whole = under_way || entry.unkept;
    if (!whole && !host_.dirty(entry.slot)) continue;
    if (entry.maps.empty()) entry.unkept = false;
    store_part(block, entry, whole ? Keep::whole : Keep::dirty, {block, 0, 0}, ticket);
  }
  end_part(ticket);
}

}  // namespace rnbd::brick
