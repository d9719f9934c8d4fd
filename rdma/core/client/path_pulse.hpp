// SPDX-License-Identifier: BSD-3-Clause
// The heartbeat of a client's path, and what it tells of the path.
#pragma once

#include <cstdint>
#include <optional>

#include "rdma/core/heartbeat.hpp"
#include "rdma/core/time.hpp"

namespace rtrs {

/// Decides when a path or its connection 0 is silent, and measures how long an answer takes.
///
/// Units:   silence in ticks, which are heartbeat intervals.
/// Threads: belongs to one path; pure, the time is an argument.
/// Source:  docs/protocol.md, heartbeats.
class PathPulse {
 public:
  PathPulse(Duration interval, unsigned misses_max) : heartbeat_{interval, misses_max} {}

  void start(Instant now) { heartbeat_.start(now); }
  /// `traffic`: something arrived on any connection of the path since the last tick. `counts`: so
  /// does the silence of connection 0. After `send` a heartbeat goes out.
  Heartbeat::Verdict on_tick(Instant now, bool traffic, bool counts);
  Instant next_deadline() const { return heartbeat_.next_deadline(); }

  /// Something came on connection 0.
  void on_arrival() { heard_ = true; }
  /// Something has come there since the last tick.
  bool heard() const { return heard_; }
  void on_answer() {
    ++answered_;
    if (unanswered_ > 0) --unanswered_;
    if (measured_ && measured_->answers > 0) --measured_->answers;
  }
  /// True: the latency was measured anew.
  bool measure(Instant now);
  /// From a heartbeat to its answer.
  Duration latency() const { return latency_; }

  /// Ticks in a row, until now, in which nothing came on connection 0, while each time an answer to
  /// a heartbeat was due. It may be dead although others live. Servers without the extension do not
  /// count, since their transport tells it.
  unsigned control_silence() const { return control_silence_; }
  /// Heartbeats that were sent and answered so far; answers come in order.
  std::uint64_t sent() const { return sent_; }
  std::uint64_t answered() const { return answered_; }
  /// Ticks since something came on any of its connections.
  unsigned silence() const { return heartbeat_.missed(); }

 private:
  /// The heartbeat that is measured.
  struct Measured {
    Instant sent_at;
    unsigned answers;  ///< until its own; they come in order
  };

  Heartbeat heartbeat_;
  bool heard_ = false;  ///< something came on connection 0 since the last tick
  unsigned control_silence_ = 0;
  unsigned unanswered_ = 0;  ///< heartbeats
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;
  std::optional<Measured> measured_;
  Duration latency_{};
};

}  // namespace rtrs
