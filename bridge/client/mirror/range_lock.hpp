// SPDX-License-Identifier: BSD-3-Clause
// A lock for ranges of the disk: one change at a time, and no read meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "bridge/client/mirror/pooled_map.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Grants ranges in the order of the requests, so that none waits for ever.
///
/// An entry hangs on the older ones that it waits for, and is looked at again when they go. So its
/// cost grows with those that it meets, not with all that are under way.
///
/// Threads: one; pure.
class RangeLock {
 public:
  enum class Mode : std::uint8_t { shared, exclusive };

  /// True: the range is held. Otherwise a release() returns the owner when it is. An owner has one
  /// range at a time.
  bool acquire(std::uint64_t owner, Range range, Mode mode);
  /// Returns the owners that have got their ranges by this, the one that asked first before others.
  std::vector<std::uint64_t> release(std::uint64_t owner);

 private:
  struct Entry {
    std::uint64_t owner = 0;
    Range range;
    Mode mode{};
    std::uint64_t serial = 0;
    unsigned waits_for = 0;      ///< entries behind which it stands
    std::vector<Entry*> behind;  ///< those that wait for it, in their order
    bool released = false;       ///< before its turn, which it still has to await
  };
  /// The entries that touch the same places, by their order. Places far from each other share one.
  struct Chain {
    std::deque<Entry*> changes;
    std::deque<Entry*> reads;
    std::deque<Entry*>& of(Mode mode) { return mode == Mode::shared ? reads : changes; }
  };
  static constexpr unsigned kShift = 9;  ///< sectors of a place: 256 KiB
  static constexpr std::size_t kChains = 256;

  template <typename Function>
  void for_chains(const Range& range, Function function);
  static void hang_on(Entry& entry, Entry& older);
  static void hang(Entry& entry, Chain& chain);
  void remove(Entry& entry, std::vector<std::uint64_t>& granted);

  std::uint64_t serial_ = 0;
  PooledMap<Entry> entries_;  ///< by owner
  std::array<Chain, kChains> chains_;
};

}  // namespace rnbd::mirror
