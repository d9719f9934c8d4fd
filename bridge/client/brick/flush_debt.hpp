// SPDX-License-Identifier: BSD-3-Clause
// The changes of a brick that no flush has made durable.
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
  /// The task of one flush.
  struct Debt {
    bool unknown = true;  ///< more than the ranges: a SYNC of them is not enough
    std::map<std::uint64_t, Range> ranges{};  ///< by block
  };

  /// These bytes of a block were written one-sided.
  void owe(std::uint64_t block, std::uint32_t begin, std::uint32_t end);
  /// Something was changed two-sided.
  void owe_unknown();
  /// Flushes wait for each other, so that none ends before the one that has its debt.
  Debt take() { return std::exchange(debt_, Debt{.unknown = false}); }
  void give_back(const Debt& debt);

 private:
  Debt debt_;
};

}  // namespace rnbd
