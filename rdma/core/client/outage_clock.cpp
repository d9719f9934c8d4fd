// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/outage_clock.hpp"

#include <utility>

namespace rtrs {

void OutageClock::set_usable(bool usable, bool was_of_use, Instant now) {
  if (was_of_use && usable_) since_.reset();
  if (std::exchange(usable_, usable) == usable) return;
  if (usable) before_ += now - unusable_since_;
  unusable_since_ = now;
  gave_up_ = false;
  if (!usable && !since_) since_ = now;
}

void OutageClock::on_lost() { gave_up_ = false; }

bool OutageClock::give_up(Instant now) {
  if (!limited() || gave_up_) return false;
  gave_up_ = now >= *since_ + timeout_;
  return gave_up_;
}

}  // namespace rtrs
