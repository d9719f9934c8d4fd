// SPDX-License-Identifier: BSD-3-Clause
// The time that a sent request waits for a connection that carries it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "rdma/core/time.hpp"

namespace rtrs {

/// A path that passes only small messages may come and go all the time, and a large request would
/// wait for ever. So its time runs while it is lost with one path after the other. It ends when
/// answers come to questions that went behind it, at three heartbeat intervals: then the server has
/// it, and may take as long as it needs. Its own answer, which may be too large for the path, is
/// behind them if storage is not slower than that.
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
  /// The request goes over a connection, behind so many questions.
  void on_sent(std::uint64_t asked) {
    behind_ = asked;
    answers_ = 0;
    arrived_ = false;
  }
  /// The request's connection is mute.
  void on_mute(Instant now) { since_ = std::min(since_, now); }
  /// The request's path is lost.
  void on_lost(Instant now) {
    if (!active()) since_ = now;
    if (losses_ < kLives) ++losses_;
  }
  /// At each interval: so many questions are answered on its connection. True: it waits no longer.
  ///
  /// The answer may be too large for the path, as often as slow storage gives it: then what comes
  /// over one more path proves nothing.
  bool on_answered(std::uint64_t answered) {
    if (!active() || answered <= behind_) return false;
    behind_ = answered;
    if (answers_ < kEnough && ++answers_ < kEnough) return false;
    if (!std::exchange(arrived_, true) && arrivals_ <= kLives) ++arrivals_;
    if (arrivals_ > kLives) return false;
    losses_ = 0;
    since_ = kNever;
    return true;
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
  static constexpr std::uint8_t kLives = 8;   ///< of paths
  static constexpr std::uint8_t kEnough = 3;  ///< intervals with an answer

  Instant since_ = kNever;
  std::uint64_t behind_ = 0;   ///< questions on its connection whose answers say nothing more
  std::uint8_t answers_ = 0;   ///< intervals with an answer to a later one
  std::uint8_t arrivals_ = 0;  ///< paths over which it has certainly reached the server
  std::uint8_t losses_ = 0;    ///< paths that it was lost with since it waits
  bool arrived_ = false;       ///< over this path, too
};

}  // namespace rtrs
