// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/range_lock.hpp"

#include <algorithm>
#include <iterator>

namespace rnbd::mirror {

/// Older entries count although they wait still: a stream of reads must not starve a write.
bool RangeLock::free_for(std::list<Entry>::const_iterator entry) const {
  return std::none_of(entries_.begin(), entry, [&](const Entry& older) {
    const bool both_read = older.mode == Mode::shared && entry->mode == Mode::shared;
    return !both_read && older.range.overlaps(entry->range);
  });
}

bool RangeLock::acquire(std::uint64_t owner, Range range, Mode mode) {
  entries_.push_back({owner, range, mode, false});
  const auto mine = std::prev(entries_.end());
  return mine->held = free_for(mine);
}

std::vector<std::uint64_t> RangeLock::release(std::uint64_t owner) {
  entries_.remove_if([&](const Entry& entry) { return entry.owner == owner; });
  std::vector<std::uint64_t> granted;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->held || !free_for(entry)) continue;
    entry->held = true;
    granted.push_back(entry->owner);
  }
  return granted;
}

}  // namespace rnbd::mirror
