// SPDX-License-Identifier: BSD-3-Clause
// The flush debt of a brick: changes that no flush has made durable yet.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace rnbd {

/// Threads: one at a time; pure.
class FlushDebt {
 public:
  struct Range {
    std::uint32_t begin = 0;  ///< in the block
    std::uint32_t end = 0;
  };
  /// The changes that one flush must make durable.
  struct Debt {
    bool unknown = true;                      ///< a SYNC of the ranges is not enough
    std::map<std::uint64_t, Range> ranges{};  ///< by block
  };

  /// Notes a one-sided write to these bytes of a block.
  void owe(std::uint64_t block, std::uint32_t begin, std::uint32_t end);
  /// Notes a two-sided change.
  void owe_unknown();
  /// Flushes wait for each other, so that none ends before an earlier one that makes its changes
  /// durable.
  Debt take() { return std::exchange(debt_, Debt{.unknown = false}); }
  void give_back(const Debt& debt);

 private:
  Debt debt_;
};

}  // namespace rnbd
