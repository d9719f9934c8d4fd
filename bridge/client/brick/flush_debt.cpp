// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/flush_debt.hpp"

#include <algorithm>

namespace rnbd {

void FlushDebt::owe(std::uint64_t block, std::uint32_t begin, std::uint32_t end) {
  const auto [at, fresh] = debt_.ranges.try_emplace(block, Range{begin, end});
  if (fresh) return;
  Range& range = at->second;
  range = {std::min(range.begin, begin), std::max(range.end, end)};
}

void FlushDebt::owe_unknown() { debt_.unknown = true; }

void FlushDebt::give_back(const Debt& debt) {
  debt_.unknown = debt_.unknown || debt.unknown || !debt.ranges.empty();
}

}  // namespace rnbd
