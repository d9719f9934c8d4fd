// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/path_pulse.hpp"

#include <utility>

namespace rtrs {

Heartbeat::Verdict PathPulse::on_tick(Instant now, bool traffic, bool counts) {
  const bool heard = std::exchange(heard_, false);  // also when there was traffic besides
  if (traffic || heard) heartbeat_.on_traffic();
  control_silence_ = heard || !counts ? 0 : control_silence_ + 1;
  const auto verdict = heartbeat_.on_tick(now);
  if (verdict == Heartbeat::Verdict::send) {
    ++unanswered_;
    ++sent_;
    if (!measured_) measured_ = Measured{now, unanswered_};
  }
  return verdict;
}

bool PathPulse::measure(Instant now) {
  if (!measured_ || measured_->answers > 0) return false;
  latency_ = now - measured_->sent_at;
  measured_.reset();
  return true;
}

}  // namespace rtrs
