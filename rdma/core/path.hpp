// SPDX-License-Identifier: BSD-3-Clause
// Terms that all code about paths shares.
#pragma once

#include <cstdint>

namespace rtrs {

inline constexpr unsigned kMaxPaths = 8;  ///< of one session
using PathMask = std::uint8_t;            ///< bit i: path i

/// One life of a path: its number, and its generation.
struct PathLife {
  unsigned path = 0;
  unsigned generation = 0;
};

/// Which of several equally good paths takes the next request.
/// Source: docs/protocol.md, several paths.
enum class PathPolicy : std::uint8_t {
  round_robin,   ///< each in turn
  min_inflight,  ///< the one with the fewest requests in flight
  min_latency,   ///< the one with the fastest heartbeats
};

/// connecting -> connected -> waiting -> connecting ...; any -> disconnected and back by command
enum class PathState : std::uint8_t {
  connecting,    ///< an attempt is under way
  connected,     ///< answers heartbeats, carries I/O if it is among the best
  waiting,       ///< the last attempt failed or the path died; tries again soon
  disconnected,  ///< by command
};

}  // namespace rtrs
