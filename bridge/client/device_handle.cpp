// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/device_handle.hpp"

#include <cerrno>
#include <utility>

namespace rnbd {

int UnflushedWrites::end_flush(const Flush& flush, int error, std::atomic<std::uint64_t>& told) {
  std::uint64_t losses = 0;
  {
    std::lock_guard lock{mutex_};
    losses = losses_;
    if (flush.covers) --flushing_;
    if (flush.covers && error != 0 && flush.losses == losses) pending_ = true;
    if (error == 0) told_ = losses;
  }
  if (error != 0) return error;
  const bool knew = told.exchange(losses) == losses;
  return flush.losses == losses && knew ? 0 : EIO;
}

bool UnflushedWrites::lose() {
  std::lock_guard lock{mutex_};
  const bool lost = pending_.exchange(false) || flushing_ != 0;
  if (lost) ++losses_;
  return lost;
}

bool VolatileEpoch::enter(std::uint64_t epoch) {
  if (epoch == 0) return false;
  return differ(std::exchange(known_, epoch), epoch);
}

}  // namespace rnbd
