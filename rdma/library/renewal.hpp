// SPDX-License-Identifier: BSD-3-Clause
// The library's recovery after the server has forgotten the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "rdma/client.hpp"

namespace rtrs::library {

/// Nothing is open that would have to be opened again: the new session begins at once, and each
/// call decides for itself how to go on (CallOperation).
///
/// Threads: as RecoveryHandler.
class Renewal final : public RecoveryHandler {
 public:
  /// Of the first session; to be called before any other can begin.
  void expect(const SessionLimits& limits) { max_io_size_ = limits.max_io_size; }

  std::unique_ptr<Operation> reopen(const SessionLimits& limits) override;
  int reopened(Operation& operation) override;

 private:
  std::atomic<std::uint32_t> max_io_size_{0};  ///< bytes; 0 = not known yet
};

}  // namespace rtrs::library
