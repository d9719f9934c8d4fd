// SPDX-License-Identifier: BSD-3-Clause
// Limits the time for which one refused device holds up the other devices of its session.
#pragma once

#include <chrono>

namespace rnbd {

/// After a recovery all devices wait until each one is open again. A device that another client has
/// taken must not hold up the others for ever. It takes several refusals, because a second outage
/// in between takes time, too. If every device is refused, none of them holds up another: the
/// storage of a server that takes over may come late.
///
/// Threads: its owner's lock; pure.
class RefusalPatience {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// An attempt to renew the session has failed. `holds_up`: the server has refused this device,
  /// but not another one.
  void note(bool holds_up, TimePoint now) {
    if (!holds_up) {
      refusals_ = 0;
    } else if (++refusals_ == 1) {
      since_ = now;
    }
  }
  /// False: the next refusal loses the device.
  bool lasts(TimePoint now) const { return refusals_ < kRefusals || now < since_ + kLongest; }

 private:
  static constexpr unsigned kRefusals = 3;
  static constexpr std::chrono::seconds kLongest{10};

  unsigned refusals_ = 0;  ///< in a row
  TimePoint since_{};
};

}  // namespace rnbd
