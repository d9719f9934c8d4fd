// SPDX-License-Identifier: BSD-3-Clause
// The finding that a path leads to another server than the session's, while both live.
#pragma once

#include <array>
#include <cstdint>

#include "rdma/core/path.hpp"

namespace rtrs {

/// A path that was refused as another server's may have found the session's own server after a
/// restart, which the other paths had not noticed. Data of these may be late. So the
/// refusal is believed when one of them has the answer to a heartbeat that was sent after it. Then
/// the finding lasts until the path joins the session or the operator trusts it.
///
/// Threads: belongs to one path; pure.
class OtherServer {
 public:
  /// The path was refused while another one carried the session.
  void on_refused() { refused_ = true; }
  /// At each heartbeat interval of a path that carries the session: how many heartbeats it has sent
  /// and how many were answered. True: the refusal is believed from now on.
  bool on_tick(unsigned path, std::uint64_t sent, std::uint64_t answered) {
    if (!refused_ || found_) return false;
    if ((ticked_ >> path & 1) == 0) {
      ticked_ = static_cast<PathMask>(ticked_ | 1U << path);
      sent_[path] = sent;
    }
    found_ = answered > sent_[path];
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
  std::array<std::uint64_t, kMaxPaths> sent_{};  ///< of these paths, at that time
};

}  // namespace rtrs
