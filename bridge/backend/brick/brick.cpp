// SPDX-License-Identifier: BSD-3-Clause
// Allocation: which blocks there are, and the records that make that durable.
#include "bridge/backend/brick/brick.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rnbd::brick {

Brick::Brick(const BrickOptions& options, const std::vector<Kept>& kept, BrickHost& host)
    : options_{options}, host_{host} {
  std::vector<bool> taken(options_.places);
  for (const Kept& block : kept) {
    Entry entry;
    entry.place = block.place;
    entry.stored = block.stored;
    entry.recorded = true;
    entry.state = block.stored ? State::slow : State::empty;
    entries_.emplace(block.block, entry);
    taken[block.place] = true;
  }
  for (Place place = 0; place < options_.places; ++place)
    if (!taken[place]) free_places_.push_back(place);
  for (Slot slot = 0; slot < options_.slots; ++slot) free_slots_.push_back(slot);
}

std::vector<Kept> Brick::kept() const {
  std::vector<Kept> kept;
  for (const auto& [block, entry] : entries_)
    if (entry.recorded) kept.push_back({block, entry.place, entry.stored});
  return kept;
}

/// One extra part keeps the operation from ending while its parts are started; see end_part().
Brick::Operation& Brick::begin(Ticket ticket) {
  Operation& operation = operations_[ticket];
  operation.left = 1;
  return operation;
}

void Brick::end_part(Ticket ticket) { part_done(ticket, 0); }

void Brick::part_done(Ticket ticket, int error) {
  const auto found = operations_.find(ticket);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  if (operation.error == 0) operation.error = error;
  if (--operation.left > 0) return;
  if (operation.kind == Operation::Kind::map) return answer_map(ticket, operation);
  if (operation.kind == Operation::Kind::fetch && operation.error == 0) return;  // it waits
  const int result = operation.error;
  operations_.erase(found);
  host_.answer(ticket, Reply{.error = result});
}

void Brick::append(const Record& record, Ticket ticket) {
  if (const auto found = operations_.find(ticket); found != operations_.end()) ++found->second.left;
  pending_.push_back({record, ticket});
}

void Brick::write_out() {
  if (recording_ || pending_.empty()) return;
  batch_.swap(pending_);
  recording_ = true;
  std::vector<Record> records;
  records.reserve(batch_.size());
  for (const Pending& pending : batch_) records.push_back(pending.record);
  host_.record(records);
}

void Brick::recorded(int error) {
  recording_ = false;
  if (error != 0) broken_ = error;
  std::vector<Pending> batch;
  batch.swap(batch_);
  for (const Pending& pending : batch) {
    apply(pending, error);
    part_done(pending.ticket, error);
  }
  write_out();
  wake();
}

void Brick::apply(const Pending& pending, int error) {
  const auto found = entries_.find(pending.record.block);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  switch (pending.record.change) {
    case Record::Change::alloc:
      entry.recorded = entry.recorded || error == 0;
      break;
    case Record::Change::free:
      entry.freeing = error == 0;
      if (error == 0)
        drop(found);
      else if (in_memory(entry))
        host_.open(found->first, entry.slot);
      break;
    case Record::Change::stored:
      if (error == 0) entry.stored = true;
      if (pending.ticket != 0)
        --entry.storing;
      else
        evicted(found->first, error);
      break;
  }
}

void Brick::drop(Entries::iterator entry) {
  if (entry->second.slot != kNone) left_memory(entry->first, entry->second, State::empty);
  free_places_.push_back(entry->second.place);
  entries_.erase(entry);
}

int Brick::may_alloc(Block first, std::uint64_t count) const {
  if (count > free_places_.size()) return ENOSPC;
  const auto next = entries_.lower_bound(first);
  return next != entries_.end() && next->first - first < count ? EEXIST : 0;
}

int Brick::alloc_one(Block block, Ticket ticket) {
  if (entries_.contains(block)) return EEXIST;
  if (free_places_.empty()) return ENOSPC;
  Entry entry;
  entry.place = free_places_.front();
  free_places_.pop_front();
  entries_.emplace(block, entry);
  append({Record::Change::alloc, entry.place, block}, ticket);
  return 0;
}

void Brick::alloc(Ticket ticket, Block first, std::uint64_t count, bool all) {
  Operation& operation = begin(ticket);
  operation.error = broken_ != 0 ? broken_ : (all ? may_alloc(first, count) : 0);
  for (std::uint64_t i = 0; i < count && operation.error == 0; ++i)
    operation.error = alloc_one(first + i, ticket);
  write_out();
  end_part(ticket);
}

int Brick::may_free(Block block) const {
  const auto found = entries_.find(block);
  if (found == entries_.end() || !found->second.recorded) return ENOENT;
  const Entry& entry = found->second;
  return !entry.maps.empty() || entry.holds > 0 || entry.freeing ? EBUSY : 0;
}

void Brick::free(Ticket ticket, Block first, std::uint64_t count, bool all) {
  Operation& operation = begin(ticket);
  operation.error = broken_;
  for (std::uint64_t i = 0; all && i < count && operation.error == 0; ++i)
    operation.error = may_free(first + i);
  for (std::uint64_t i = 0; i < count && operation.error == 0; ++i) {
    operation.error = may_free(first + i);
    if (operation.error == 0) free_one(first + i, ticket);
  }
  write_out();
  end_part(ticket);
}

void Brick::free_one(Block block, Ticket ticket) {
  Entry& entry = entries_.at(block);
  entry.freeing = true;
  entry.freer = ticket;
  ++operations_.at(ticket).left;
  go_on_freeing(block);
}

/// A block that is being loaded, or is leaving, is freed afterwards. So is one that a request uses.
void Brick::go_on_freeing(Block block) {
  Entry& entry = entries_.at(block);
  if (!entry.freeing || entry.freer == 0) return;
  if (entry.state == State::coming || entry.state == State::leaving || entry.holds > 0) return;
  const bool open = entry.state == State::memory || entry.state == State::clean;
  if (open && !host_.close(block)) return;  // until released()
  record_free(block, entry);
}

void Brick::record_free(Block block, Entry& entry) {
  const Ticket ticket = std::exchange(entry.freer, 0);
  append({Record::Change::free, entry.place, block}, ticket);
  --operations_.at(ticket).left;  // append() has counted it
  write_out();
}

void Brick::released(Block block) {
  const auto found = entries_.find(block);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.freeing)
    go_on_freeing(block);
  else if (in_memory(entry))
    host_.open(block, entry.slot);
  wake();
}

void Brick::hold(Block block, Operation& operation) {
  if (operation.held.insert(block).second) ++entries_.at(block).holds;
}

void Brick::let_go(Operation& operation) {
  for (const Block block : operation.held) --entries_.at(block).holds;
  operation.held.clear();
}

bool Brick::shows(Listing what, Session session, const Entry& entry) const {
  if (!entry.recorded) return false;
  if (what == Listing::allocated) return true;
  return std::any_of(entry.maps.begin(), entry.maps.end(), [&](std::uint64_t id) {
    const Map& map = maps_.at(id);
    if (what == Listing::mapped) return true;
    return map.session == session && (what == Listing::mapped_by_me || map.recalled);
  });
}

std::vector<Listed> Brick::list(Listing what, Session session, Block first,
                                std::size_t most) const {
  std::vector<Listed> result;
  for (auto it = entries_.lower_bound(first); it != entries_.end() && result.size() < most; ++it) {
    const Entry& entry = it->second;
    if (!shows(what, session, entry)) continue;
    Listed listed{it->first, entry.slot != kNone, 0};
    for (const std::uint64_t id : entry.maps) listed.mapped |= maps_.at(id).rights;
    listed.mapped &= kRead | kWrite;
    result.push_back(listed);
  }
  return result;
}

std::uint64_t Brick::count(Listing what, Session session) const {
  return static_cast<std::uint64_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [&](const auto& item) { return shows(what, session, item.second); }));
}

}  // namespace rnbd::brick
