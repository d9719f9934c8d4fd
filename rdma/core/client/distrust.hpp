// SPDX-License-Identifier: BSD-3-Clause
// For how long a path that fails as soon as it is used takes no requests.
#pragma once

#include <algorithm>
#include <chrono>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Such a path looks well as soon as it is connected again. So it is distrusted for a while, twice
/// as long each time; old failures do not count.
///
/// Threads: belongs to one path; pure, the time is an argument.
class Distrust {
 public:
  void begin(Instant now) {
    constexpr Duration kShortest = std::chrono::seconds{10};
    constexpr Duration kLongest = std::chrono::minutes{10};
    constexpr Duration kLongAgo = std::chrono::minutes{2};
    const bool long_ago = now >= until_ + std::max(length_, kLongAgo);
    length_ = long_ago ? kShortest : std::clamp(2 * length_, kShortest, kLongest);
    until_ = now + length_;
    active_ = true;
  }
  /// True: it ends now.
  bool ends(Instant now) {
    if (!active_ || now < until_) return false;
    active_ = false;
    return true;
  }
  /// The operator's order overrides the distrust.
  void forgive() {
    active_ = false;
    length_ = {};
  }
  bool active() const { return active_; }
  Instant until() const { return until_; }

 private:
  bool active_ = false;
  Duration length_{};  ///< of the last one
  Instant until_{};
};

}  // namespace rtrs
