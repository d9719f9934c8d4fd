// SPDX-License-Identifier: BSD-3-Clause
// Memory that a peer reads and writes by itself, while this end does not look.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tl/expected.hpp>

#include "rdma/core/queue_pair.hpp"

namespace rtrs {

/// The rights of a peer on a region.
enum RegionAccess : std::uint8_t {
  kRegionRead = 1,
  kRegionWrite = 2,
};

/// The regions of one path: a key that this path's connections have, and no other connection.
/// QueuePair::read() and write_confirmed() of the peer use them.
///
/// A peer loses the connection when it uses a wrong key, leaves its region, or lacks the right.
///
/// Threads: the path's.
/// Source:  docs/protocol.md, memory paths.
class Regions {
 public:
  virtual ~Regions() = default;

  /// Lets the peer use `memory`, of 1 byte to kMaxRegion, in the ways of `access` (RegionAccess).
  /// It must stay until retire() has told the end.
  ///
  /// Errors: an errno: ENOMEM when it cannot be locked, or there are too many.
  virtual tl::expected<RemoteMemory, int> expose(MutableBytes memory, unsigned access) = 0;
  /// Ends the validity of a key that expose() returned. `dead` is called when nothing lands in the
  /// memory any more and nothing is read from it: from any thread, perhaps before this returns.
  virtual void retire(RemoteMemory where, std::function<void()> dead) = 0;
  /// Ends the validity of all keys, also of those that retire() has not ended yet.
  virtual void retire_all(std::function<void()> dead) = 0;

  static constexpr std::size_t kMaxRegion = std::size_t{1} << 21;
};

}  // namespace rtrs
