// SPDX-License-Identifier: BSD-3-Clause
// The watch over one connection of a lane: it may carry nothing any more.
#pragma once

#include <cstdint>
#include <utility>

namespace rtrs {

/// Watches a connection that owes answers. One that is silent is asked for a keepalive reply, which
/// a live server gives however slow its storage is. If none comes, the connection is dead, even if
/// the path's other connections live.
///
/// Units:   heartbeat intervals.
/// Threads: the holder of the lane; pure.
/// Source:  docs/protocol.md, heartbeats; docs/decisions, 30.
class KeepaliveWatch {
 public:
  enum class Verdict : std::uint8_t {
    lives,  ///< it has carried something, or owes nothing
    ask,    ///< silent for the first interval: ask for a keepalive reply
    mute,   ///< for at least an interval since it was asked
    dead,
  };

  /// The connection is a new one.
  void restart() {
    silent_ = 0;
    expect();
  }
  /// Something was sent that has waited: replies count from now on.
  void expect() {
    replies_ = 0;
    state_ = State::idle;
  }
  void on_reply() { state_ = State::replied; }

  /// At each interval. `received`: signs of life so far; `owes`: answers are due.
  Verdict on_interval(std::uint64_t received, bool owes, unsigned misses_max) {
    const bool heard = std::exchange(received_before_, received) != received;
    if (heard || !owes) {
      silent_ = 0;
      return Verdict::lives;
    }
    if (silent_ > misses_max) return Verdict::dead;
    return silent_++ == 0 ? Verdict::ask : Verdict::mute;
  }
  /// At each interval. True: enough replies have come since expect(). A slow server has certainly
  /// received what was sent then.
  bool proves_life() {
    constexpr unsigned kEnough = 3;
    if (state_ != State::replied) return false;
    state_ = State::idle;
    return ++replies_ >= kEnough;
  }

  void on_asked() { state_ = State::asked; }
  bool asked() const { return state_ == State::asked; }
  /// Intervals in which it owed answers and sent nothing.
  unsigned silence() const { return silent_; }
  bool mute() const { return silent_ > 1; }

 private:
  enum class State : std::uint8_t {
    idle,     ///< no reply is due
    asked,    ///< for a keepalive reply
    replied,  ///< it has given one since the last interval
  };

  std::uint64_t received_before_ = 0;
  unsigned silent_ = 0;
  unsigned replies_ = 0;
  State state_ = State::idle;
};

}  // namespace rtrs
