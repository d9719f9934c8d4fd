// SPDX-License-Identifier: BSD-3-Clause
// The finding that a path leads to another server than the session's, while both live.
#pragma once

#include "rdma/core/path.hpp"

namespace rtrs {

/// A path that was refused as another server's may have found the session's own server after a
/// restart, which the other paths had not noticed. So the refusal is believed when one of these
/// hears from the session's server later. Then the finding lasts until the path joins the session
/// or the operator trusts it.
///
/// Threads: belongs to one path; pure.
class OtherServer {
 public:
  /// The path was refused while another one carried the session.
  void on_refused() { refused_ = true; }
  /// A path that carries the session ends a heartbeat interval. `heard`: something came over it
  /// since its last one. True: the refusal is believed from now on.
  bool on_tick(unsigned path, bool heard) {
    if (!refused_ || found_) return false;
    const auto bit = static_cast<PathMask>(1U << path);
    found_ = heard && (ticked_ & bit) != 0;
    ticked_ = static_cast<PathMask>(ticked_ | bit);
    return found_;
  }
  /// A path that carried the session is lost.
  void on_lost(unsigned path) { ticked_ = static_cast<PathMask>(ticked_ & ~(1U << path)); }
  /// No path carries the session any more. The refusal may have come from the session's own server,
  /// after a restart.
  void on_outage() {
    refused_ = found_;
    ticked_ = 0;
  }
  bool found() const { return found_; }

 private:
  bool refused_ = false;
  bool found_ = false;
  PathMask ticked_ = 0;  ///< the paths that have ended an interval since the refusal
};

}  // namespace rtrs
