// SPDX-License-Identifier: BSD-3-Clause
// How long a device that its server does not open again may keep the others of its session waiting.
#pragma once

#include <chrono>

namespace rnbd {

/// A device that another client has taken must not hold up the others for ever. Several refusals
/// are needed, because an outage in between takes long, too. While no other device could go on,
/// nobody is held up: all storage of a server that takes over from another one may come late.
///
/// Threads: its owner's lock; pure.
class RefusalPatience {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// An attempt to renew the session has failed. `holds_up`: this device was refused, and another
  /// one was not.
  void note(bool holds_up, TimePoint now) {
    if (!holds_up) {
      refusals_ = 0;
    } else if (++refusals_ == 1) {
      since_ = now;
    }
  }
  /// False: the device is to be lost if it is refused once more.
  bool lasts(TimePoint now) const { return refusals_ < kRefusals || now < since_ + kLongest; }

 private:
  static constexpr unsigned kRefusals = 3;
  static constexpr std::chrono::seconds kLongest{10};

  unsigned refusals_ = 0;  ///< in a row
  TimePoint since_{};
};

}  // namespace rnbd
