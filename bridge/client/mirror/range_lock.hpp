// SPDX-License-Identifier: BSD-3-Clause
// A lock for ranges of the disk: one change at a time, and no read meanwhile.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Grants ranges in the order of the requests, so that none waits for ever.
///
/// Threads: one; pure.
class RangeLock {
 public:
  enum class Mode : std::uint8_t { shared, exclusive };

  /// True: the range is held. Otherwise a release() returns the owner when it is.
  bool acquire(std::uint64_t owner, Range range, Mode mode);
  /// Returns the owners that have got their ranges by this.
  std::vector<std::uint64_t> release(std::uint64_t owner);

 private:
  struct Entry {
    std::uint64_t owner = 0;
    Range range;
    Mode mode{};
    bool held = false;
  };
  bool free_for(std::list<Entry>::const_iterator entry) const;

  std::list<Entry> entries_;
};

}  // namespace rnbd::mirror
