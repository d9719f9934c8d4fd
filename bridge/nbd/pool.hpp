// SPDX-License-Identifier: BSD-3-Clause
// The memory and threads that all connections of a front share.
#pragma once

#include <cstddef>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/budget.hpp"
#include "bridge/nbd/call_pool.hpp"

namespace rnbd::nbd {

/// The calls and memory that connections share. Each connection also has one call and some memory
/// of its own, so that connections without an answer never hold up the others.
///
/// Threads: any.
struct Pool {
  /// Calls beyond the one that each connection may have at any time.
  static constexpr std::size_t kMoreCalls = 128;
  /// For devices that are being closed, which takes some seconds at most.
  static constexpr std::size_t kClosing = 64;
  /// Units: bytes, beyond those that each connection owns.
  static constexpr std::size_t kMemory = std::size_t{512} * 1024 * 1024;

  explicit Pool(std::size_t max_connections) : calls{max_connections + kMoreCalls + kClosing} {}

  CallPool calls;
  MeterBook meters;
  Budget more_calls{kMoreCalls};
  Budget memory{kMemory};
};

}  // namespace rnbd::nbd
