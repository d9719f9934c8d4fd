// SPDX-License-Identifier: BSD-3-Clause
// Notices to the client of a path on connection 0, beside its answers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {

/// The access state of a path and recalls of memory, each until the client has acknowledged it.
///
/// Invariant: one notice of each kind is under way at most. A client that reads nothing must not
///            make us keep more and more of them.
/// Threads:   the session's reactor; pure.
/// Source:    docs/protocol.md, several paths.
class PathNotices {
 public:
  /// `told`: the state that the client got when the path was accepted. `understood`: it knows
  /// notices.
  PathNotices(wire::PathAccess told, bool understood)
      : access_{told}, told_{told}, understood_{understood} {}

  void set_access(wire::PathAccess access) { access_ = access; }
  wire::PathAccess access() const { return access_; }
  /// The client knows, and submits accordingly.
  bool access_known() const { return understood_ && told_ == access_ && !access_unanswered_; }
  /// The immediate that tells the access state. None: the client was told, or has to answer first.
  std::optional<std::uint32_t> next_access() {
    if (access_unanswered_ || told_ == access_) return std::nullopt;
    access_unanswered_ = true;
    told_ = access_;
    return wire::access_immediate(told_);
  }
  [[nodiscard]] Complaint on_access_acknowledged(std::uint32_t immediate) {
    if (!access_unanswered_ || immediate != wire::access_immediate(told_)) {
      return "an answer to an access notice that was not sent";
    }
    access_unanswered_ = false;
    return nullptr;
  }

  bool recall_unanswered() const { return recall_.has_value(); }
  /// The immediate that tells of a recall; none may be unanswered.
  std::uint32_t send_recall(std::uint32_t count) {
    recall_ = count;
    return wire::recall_immediate(count);
  }
  /// The recall that was acknowledged. None: there was no such recall.
  std::optional<std::uint32_t> on_recall_acknowledged(std::uint32_t immediate) {
    if (!recall_ || immediate != wire::recall_immediate(*recall_)) return std::nullopt;
    return std::exchange(recall_, std::nullopt);
  }

 private:
  wire::PathAccess access_;
  wire::PathAccess told_;  ///< last
  bool understood_;
  bool access_unanswered_ = false;
  std::optional<std::uint32_t> recall_;
};

}  // namespace rtrs
