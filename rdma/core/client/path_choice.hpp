// SPDX-License-Identifier: BSD-3-Clause
// Which of a lane's paths takes the next request.
#pragma once

#include <array>

#include "rdma/core/path.hpp"
#include "rdma/core/time.hpp"

namespace rtrs {

/// Knows of each path what a choice depends on. Has the lane a connection there, and does the
/// server let it carry requests? How much is in flight, and how fast does it answer?
///
/// Threads: the holder of the lane; pure.
/// Source:  docs/protocol.md, several paths.
class PathChoice {
 public:
  void attach(unsigned path, bool accessible) {
    attached_ = static_cast<PathMask>(attached_ | 1U << path);
    loads_[path].in_flight = 0;
    allow(path, accessible);
  }
  void detach(unsigned path) {
    attached_ = static_cast<PathMask>(attached_ & ~(1U << path));
    loads_[path].in_flight = 0;
    suspect(path, false);
    doubt(path, false);
  }
  /// The lane's connection there is silent (Race). It takes requests only where all are.
  void suspect(unsigned path, bool silent) {
    const unsigned others = suspects_ & ~(1U << path);
    suspects_ = static_cast<PathMask>(others | static_cast<unsigned>(silent) << path);
  }
  /// The lane's connection there is outrun (Race). Of equally good paths the others are taken.
  void doubt(unsigned path, bool outrun) {
    const unsigned others = doubted_ & ~(1U << path);
    doubted_ = static_cast<PathMask>(others | static_cast<unsigned>(outrun) << path);
  }
  /// The ones of these paths that are not outrun; all, if there are none.
  unsigned sure_of(unsigned paths) const {
    const unsigned sure = paths & ~unsigned{doubted_};
    return sure != 0 ? sure : paths;
  }
  /// The server lets an attached path carry new requests, or lets it not.
  void allow(unsigned path, bool accessible) {
    const unsigned others = forbidden_ & ~(1U << path);
    forbidden_ = static_cast<PathMask>(others | static_cast<unsigned>(!accessible) << path);
  }
  /// The paths that take the requests, as long as one of them is open.
  void use(PathMask paths, PathPolicy policy) {
    in_use_ = paths;
    policy_ = policy;
  }
  void set_latency(unsigned path, Duration latency) { loads_[path].latency = latency; }

  PathMask attached() const { return attached_; }
  bool attached(unsigned path) const { return (attached_ >> path & 1) != 0; }
  /// The paths that new requests may take. Those of a lane that keeps order take forbidden ones, if
  /// there is no other.
  unsigned open(bool keeps_order) const {
    const unsigned allowed = attached_ & ~forbidden_;
    return allowed == 0 && keeps_order ? attached_ : allowed;
  }
  /// Likewise, without those that are silent if others are there, whatever their class.
  unsigned ways(bool keeps_order) const {
    const unsigned all = open(keeps_order);
    const unsigned trusted = all & ~unsigned{suspects_};
    return trusted != 0 ? trusted : all;
  }
  /// One of `open`, which must not be empty. `stay`: the one that was chosen last, if it is there.
  unsigned choose(unsigned open, bool stay) {
    if (stay && attached(turn_)) return turn_;
    turn_ = best_of(open);
    return turn_;
  }

  void sent(unsigned path) { ++loads_[path].in_flight; }
  void answered(unsigned path) { --loads_[path].in_flight; }
  unsigned in_flight(unsigned path) const { return loads_[path].in_flight; }

 private:
  struct Load {
    unsigned in_flight = 0;  ///< requests
    Duration latency{};
  };

  unsigned best_of(unsigned open) const;

  std::array<Load, kMaxPaths> loads_;
  PathMask attached_ = 0;
  PathMask forbidden_ = 0;  ///< of those that are attached
  PathMask suspects_ = 0;   ///< likewise
  PathMask doubted_ = 0;    ///< likewise
  PathMask in_use_ = 0xFF;
  PathPolicy policy_ = PathPolicy::min_inflight;
  unsigned turn_ = 0;  ///< the path that was chosen last
};

}  // namespace rtrs
