// SPDX-License-Identifier: BSD-3-Clause
// The terms of views that the records of a mirror's members show.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// Judges records that count hundreds of forced decisions more than others do. Such a record is
/// damaged, or the others have missed these decisions. A second record that has them, too, tells
/// which. Until then nobody follows the first one where another record contradicts it, as its term
/// would shut the others out.
///
/// Threads: one; pure.
class RecordTerms {
 public:
  explicit RecordTerms(std::size_t members) : terms_(members) {}

  /// The term of its view; 0: it has none.
  void note(unsigned member, std::uint64_t term) { terms_[member] = term; }
  /// It has refused this term as too far ahead. False: it has no view, so that says nothing. It had
  /// just been claimed with another term, and takes any in its next session.
  bool fell_behind(unsigned member, std::uint64_t term) {
    if (terms_[member] == 0U) return false;
    if (!terms_[member] || is_near(term, *terms_[member])) terms_[member] = kEarly;
    return true;
  }
  /// 0: not known.
  std::uint64_t of(unsigned member) const { return terms_[member].value_or(0); }
  /// The member that knows nothing near this term of `member`, while no other one does;
  /// kMaxMembers: there is none.
  unsigned against(unsigned member, std::uint64_t term) const {
    unsigned found = kMaxMembers;
    for (unsigned i = 0; i < terms_.size(); ++i) {
      if (i == member || of(i) == 0) continue;
      if (is_near(term, of(i))) return kMaxMembers;
      found = std::min(found, i);
    }
    return found;
  }
  /// The members that know of nearly all decisions that this term counts.
  MemberSet near(std::uint64_t term) const {
    MemberSet set = 0;
    for (unsigned i = 0; i < terms_.size(); ++i)
      if (of(i) != 0 && is_near(term, of(i))) set = with(set, i);
    return set;
  }

 private:
  static constexpr std::uint64_t kEarly = 1;  ///< as if nothing had been forced

  std::vector<std::optional<std::uint64_t>> terms_;
};

}  // namespace rnbd::mirror
