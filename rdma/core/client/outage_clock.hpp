// SPDX-License-Identifier: BSD-3-Clause
// The time that a session's requests have been without a path.
#pragma once

#include <algorithm>
#include <optional>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Measures the time in which no path may carry requests, and says once for each outage that they
/// have waited for too long. A path that comes and ends again in vain does not end an outage.
///
/// Units:   `timeout`: 0 = they wait for ever.
/// Threads: belongs to one session; pure, the time is an argument.
class OutageClock {
 public:
  explicit OutageClock(Duration timeout) : timeout_{timeout} {}

  /// Some path may carry requests from now on, or none. `was_of_use`: those that could until now.
  void set_usable(bool usable, bool was_of_use, Instant now);
  /// A path that carried requests is lost: they have not failed yet.
  void on_lost();
  /// The process stood still for so long, until now.
  void put_off(Duration pause, Instant now) {
    if (since_) since_ = std::min(*since_ + pause, now);
  }
  /// True once for each outage: requests have waited for too long.
  bool give_up(Instant now);

  bool usable() const { return usable_; }
  /// The time altogether in which no path was usable, until now.
  Duration total(Instant now) const {
    return before_ + (usable_ ? Duration{} : now - unusable_since_);
  }
  /// Requests wait, and not for ever.
  bool limited() const { return !usable_ && timeout_ != Duration::zero(); }
  /// The time to ask give_up() again, while it is limited(). None: it has been said.
  std::optional<Instant> deadline() const {
    if (gave_up_) return std::nullopt;
    return *since_ + timeout_;
  }

 private:
  Duration timeout_;
  bool usable_ = true;
  bool gave_up_ = false;  ///< that has been said
  Instant unusable_since_{};
  Duration before_{};             ///< of all outages, until it became usable last
  std::optional<Instant> since_;  ///< no path since, or none that was of use
};

}  // namespace rtrs
