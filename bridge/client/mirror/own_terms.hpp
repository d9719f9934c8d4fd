// SPDX-License-Identifier: BSD-3-Clause
// The views that a mirror's client has made itself, in all of its groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rnbd::mirror {

/// Tells a view of this client from one of another client that has taken the mirror over.
///
/// Threads: one; pure.
class OwnTerms {
 public:
  /// A view of this term is on its way to members. Some may record it, though it never is in force.
  void proposed(std::uint64_t term) {
    if (proposed_.empty() || proposed_.back() != term) proposed_.push_back(term);
  }
  /// All members of a view of this term have recorded it, so users are served.
  void in_force(std::uint64_t term) {
    in_force_ = std::max(in_force_, term);
    std::erase_if(proposed_, [this](std::uint64_t earlier) { return earlier <= in_force_; });
  }
  /// True if another client's users may have been served since this one's were. Views from before
  /// this client's first one are no reason.
  bool superseded_by(std::uint64_t term) const {
    return in_force_ != 0 && term > in_force_ &&
           std::ranges::find(proposed_, term) == proposed_.end();
  }

 private:
  std::uint64_t in_force_ = 0;  ///< the newest one; 0: none was yet
  std::vector<std::uint64_t> proposed_;
};

}  // namespace rnbd::mirror
