// SPDX-License-Identifier: BSD-3-Clause
// How long a request may take while one path of its session works.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "rdma/core/path.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Sees requests by their permits, which they keep when they are sent again. Only for servers and
/// clients with the extension: with others what is lost waits for its own path.
class LatencyWatch {
 public:
  LatencyWatch(World& world, const Knobs& knobs, NodeId self, NodeId server, std::string who);

  void added(unsigned path) { stalled_[path].reset(); }
  void requested(unsigned path, std::uint32_t permit);
  /// The requests that were on it go over any path again.
  void lost(unsigned path);
  /// An answer over another path than the newest copy's ends nothing.
  void answered(unsigned path, std::uint32_t permit) {
    const auto found = since_.find(permit);
    if (found != since_.end() && found->second.path == path) since_.erase(found);
  }
  /// Some permits may be free without an answer: callers have given up, or the session is another.
  void forget() { since_.clear(); }

  /// `healthy_since`: of a path that carries everything and is not disturbed. `misses_max`:
  /// heartbeat intervals that a connection may be silent for. `races`: requests leave a path that
  /// is silent before that is given up. `opening`: the time that the server may keep an OPEN
  /// among the requests waiting.
  void check(std::optional<Instant> healthy_since, unsigned misses_max, bool races,
             Duration opening) const;
  /// A path is lost because a connection that owed answers carried nothing, and something is in the
  /// way of it. A path that has stalled once is not trusted again soon.
  void stalled(unsigned path, std::optional<Instant> healthy_since);

 private:
  World& world_;
  const Knobs& knobs_;
  NodeId self_;
  NodeId server_;
  std::string who_;
  struct Sent {
    Instant first;
    unsigned path = 0;        ///< of the newest copy
    rtrs::PathMask been = 0;  ///< paths of all copies
    bool stranded = false;    ///< the newest copy's path is lost
  };
  std::map<std::uint32_t, Sent> since_;  ///< by permit
  std::array<std::optional<Instant>, rtrs::kMaxPaths> stalled_{};
};

}  // namespace sim
