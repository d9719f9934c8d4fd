// SPDX-License-Identifier: BSD-3-Clause
// Decides when a silent peer is dead.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Linux's values, which we use towards its peers. Source: rtrs-pri.h, HB interval and missed
/// maximum.
inline constexpr Duration kLinuxHeartbeatInterval = std::chrono::seconds{5};
inline constexpr unsigned kLinuxHeartbeatMisses = 5;

/// Any arrival from the peer counts as life, not only an answer to a heartbeat. Misses are counted
/// in ticks that really happened, so that a process that was itself stopped for a while does not
/// blame its peer.
///
/// A client asks at each interval, because it judges its connections by the answers. A server has
/// heard its client then, and asks only when an interval has passed in silence: an idle path has
/// half of the messages.
///
/// Units:   interval > 0; a peer is dead after misses_max + 1 to misses_max + 2 silent intervals.
/// Threads: belongs to one path; pure, the time is an argument.
/// Source:  docs/protocol.md, heartbeats.
class Heartbeat {
 public:
  enum class Verdict { nothing, send, dead };
  enum class Asks : std::uint8_t { always, in_silence };

  /// An end that would not wait for an answer asks always.
  Heartbeat(Duration interval, unsigned misses_max, Asks asks = Asks::always)
      : interval_{interval},
        misses_max_{misses_max},
        asks_after_{asks == Asks::in_silence && misses_max > 0 ? 1U : 0U} {}

  void start(Instant now) {
    next_ = now + interval_;
    missed_ = 0;
  }
  void on_traffic() { missed_ = 0; }

  Verdict on_tick(Instant now) {
    if (now < next_) return Verdict::nothing;
    next_ = now + interval_;
    if (missed_ > misses_max_) return Verdict::dead;
    return missed_++ == asks_after_ ? Verdict::send : Verdict::nothing;
  }

  unsigned missed() const { return missed_; }  ///< ticks since the last traffic
  Instant next_deadline() const { return next_; }

 private:
  Duration interval_;
  unsigned misses_max_;
  unsigned asks_after_;  ///< ticks without traffic
  unsigned missed_ = 0;
  Instant next_{};
};

/// The time for which a path's connections may owe answers and send nothing. A network that is
/// merely slow must not look dead in one generation after the other: then no large request would
/// ever get through. Under RDMA, one that loses order is slow: it goes back to the lost packet. So
/// each time it looked dead, the next generation gets twice the time, eight times at most.
///
/// Threads: belongs to one path; pure, the time is an argument.
class ProbePatience {
 public:
  /// Silent intervals, of the usual ones.
  unsigned misses_max(unsigned usual) const { return usual * factor_; }
  void on_dead(Instant now) {
    factor_ = std::min(8U, factor_ * 2);
    dead_at_ = now;
  }
  /// At each interval that it lives. Deaths of long ago do not count.
  void on_alive(Instant now) {
    if (now - dead_at_ >= std::chrono::minutes{2}) factor_ = 1;
  }

 private:
  unsigned factor_ = 1;
  Instant dead_at_{};
};

}  // namespace rtrs
