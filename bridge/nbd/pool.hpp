// What all connections of a front draw from.
#pragma once

#include <cstddef>

#include "bridge/nbd/budget.hpp"
#include "bridge/nbd/call_pool.hpp"

namespace rnbd::nbd {

/// Each connection may always make one call, so that those that get no answer never hold up the
/// others; how many more all of them may make is limited here.
///
/// Threads: any.
struct Pool {
  /// Calls beyond the one that each connection may have at any time.
  static constexpr std::size_t kMoreCalls = 128;
  /// For devices that are being closed, which takes some seconds at most.
  static constexpr std::size_t kClosing = 64;

  explicit Pool(std::size_t max_connections) : calls{max_connections + kMoreCalls + kClosing} {}

  CallPool calls;
  Budget more_calls{kMoreCalls};
};

}  // namespace rnbd::nbd
