// SPDX-License-Identifier: BSD-3-Clause
// Threads for calls that may block: opening and closing files that clients name.
#pragma once

#include <memory>

#include "bridge/server/surroundings.hpp"
#include "rdma/client_log.hpp"

namespace rnbd {

/// Threads: post() from any.
class BlockingPool {
 public:
  BlockingPool();
  /// Waits for all its work.
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  /// Returns surroundings that use this pool and the event loops of the reactors.
  Surroundings surroundings(std::shared_ptr<rtrs::ClientLog> log);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rnbd
