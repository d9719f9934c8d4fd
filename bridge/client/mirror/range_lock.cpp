// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/range_lock.hpp"

#include <algorithm>

#include "rdma/wire/ensure.hpp"

namespace rnbd::mirror {

template <typename Function>
void RangeLock::for_chains(const Range& range, Function function) {
  const std::uint64_t first = range.begin >> kShift;
  const std::uint64_t count = ((std::max(range.end, range.begin + 1) - 1) >> kShift) - first + 1;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, kChains); ++i)
    function(chains_[(first + i) % kChains]);
}

/// Two entries may meet in several chains, and count as often.
void RangeLock::hang_on(Entry& entry, Entry& older) {
  older.behind.push_back(&entry);
  ++entry.waits_for;
}

/// Older entries count although they wait still: a stream of reads must not starve a write. Behind
/// a change of the whole range nothing older has to be looked at, for that waits for it already.
void RangeLock::hang(Entry& entry, Chain& chain) {
  std::uint64_t covered = 0;
  for (auto older = chain.changes.rbegin(); older != chain.changes.rend() && covered == 0;
       ++older) {
    const Range& other = (*older)->range;
    if (!other.overlaps(entry.range)) continue;
    hang_on(entry, **older);
    if (other.begin <= entry.range.begin && entry.range.end <= other.end)
      covered = (*older)->serial;
  }
  if (entry.mode == Mode::shared) return;
  for (auto older = chain.reads.rbegin(); older != chain.reads.rend(); ++older) {
    if ((*older)->serial < covered) break;
    if ((*older)->range.overlaps(entry.range)) hang_on(entry, **older);
  }
}

bool RangeLock::acquire(std::uint64_t owner, Range range, Mode mode) {
  RTRS_ENSURE(!entries_.contains(owner));
  Entry& entry = entries_.add(owner);
  entry.owner = owner;
  entry.range = range;
  entry.mode = mode;
  entry.serial = ++serial_;
  entry.waits_for = 0;
  entry.behind.clear();
  entry.released = false;
  for_chains(range, [&](Chain& chain) { hang(entry, chain); });
  for_chains(range, [&](Chain& chain) { chain.of(mode).push_back(&entry); });
  return entry.waits_for == 0;
}

/// One that was released before its turn goes as soon as that comes.
void RangeLock::remove(Entry& entry, std::vector<std::uint64_t>& granted) {
  for_chains(entry.range, [&](Chain& chain) {
    std::deque<Entry*>& all = chain.of(entry.mode);
    all.erase(std::find(all.begin(), all.end(), &entry));
  });
  for (Entry* next : entry.behind) {
    if (--next->waits_for != 0) continue;
    next->released ? remove(*next, granted) : granted.push_back(next->owner);
  }
  entries_.erase(entry.owner);
}

std::vector<std::uint64_t> RangeLock::release(std::uint64_t owner) {
  std::vector<std::uint64_t> granted;
  const auto found = entries_.find(owner);
  if (found == entries_.end()) return granted;
  found->second.released = true;
  if (found->second.waits_for == 0) remove(found->second, granted);
  return granted;
}

}  // namespace rnbd::mirror
