// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/path_choice.hpp"

#include <bit>

namespace rtrs {

unsigned PathChoice::best_of(unsigned open) const {
  unsigned candidates = open & in_use_;
  candidates = sure_of(candidates != 0 ? candidates : open);
  auto best = static_cast<unsigned>(std::countr_zero(candidates));
  if ((candidates & (candidates - 1)) == 0) return best;
  if (policy_ == PathPolicy::round_robin) {
    const unsigned later = candidates & ~((2U << turn_) - 1);
    return later != 0 ? static_cast<unsigned>(std::countr_zero(later)) : best;
  }
  for (unsigned rest = candidates & (candidates - 1); rest != 0; rest &= rest - 1) {
    const auto path = static_cast<unsigned>(std::countr_zero(rest));
    const bool better = policy_ == PathPolicy::min_inflight
                            ? loads_[path].in_flight < loads_[best].in_flight
                            : loads_[path].latency < loads_[best].latency;
    if (better) best = path;
  }
  return best;
}

}  // namespace rtrs
