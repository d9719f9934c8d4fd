// SPDX-License-Identifier: BSD-3-Clause
// One change per range of the disk at a time, and no read meanwhile.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Gives ranges in the order in which they were asked for, so that nobody waits for ever.
///
/// Threads: one; pure.
class RangeLock {
 public:
  enum class Mode : std::uint8_t { shared, exclusive };

  /// True: it is held. Otherwise release() of others tells when it is.
  bool acquire(std::uint64_t owner, Range range, Mode mode);
  /// The owners that hold their ranges from now on.
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
