// SPDX-License-Identifier: BSD-3-Clause
// The time that a sent request waits for a connection that carries it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "rdma/core/time.hpp"

namespace rtrs {

/// A path that passes only small messages may come and go all the time, and a large request would
/// wait for ever. So its time runs while it is lost with one path after the other. It ends when a
/// keepalive reply comes behind it: then the server has it, and may take as long as it needs.
///
/// Threads: the holder of the lane; pure, the time is an argument.
/// Source:  docs/decisions, 30.
class DeliveryWait {
 public:
  static constexpr Instant kNever = Instant::max();  ///< it does not wait

  /// A request takes the slot; it has waited from `since` on.
  void begin(Instant since) {
    since_ = since;
    arrivals_ = losses_ = 0;
  }
  void on_sent() { arrived_ = false; }
  /// The request's connection is mute.
  void on_mute(Instant now) { since_ = std::min(since_, now); }
  /// The request's path is lost.
  void on_lost(Instant now) {
    if (!active()) since_ = now;
    if (losses_ < kLives) ++losses_;
  }
  /// Keepalive replies have come behind it. The answer may be too large for the path, as often as
  /// slow storage gives it: then the replies of one more path prove nothing.
  void on_arrived() {
    if (!std::exchange(arrived_, true) && arrivals_ <= kLives) ++arrivals_;
    if (arrivals_ > kLives) return;
    losses_ = 0;
    since_ = kNever;
  }
  /// The process stood still, and could not hear anything.
  void put_off(Duration pause) {
    if (active()) since_ += pause;
  }

  bool active() const { return since_ != kNever; }
  Instant since() const { return since_; }
  /// True: the request was lost with so many paths that one more will not help.
  bool in_vain() const { return losses_ == kLives; }

 private:
  static constexpr std::uint8_t kLives = 8;  ///< of paths

  Instant since_ = kNever;
  std::uint8_t arrivals_ = 0;  ///< paths over which it has certainly reached the server
  std::uint8_t losses_ = 0;    ///< paths that it was lost with since it waits
  bool arrived_ = false;       ///< over this path, too
};

}  // namespace rtrs
