// SPDX-License-Identifier: BSD-3-Clause
// The operations of a mirror group that have not ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

enum class OperationKind : std::uint8_t { read, write, flush, equal, copy };

struct Operation {
  enum class Step : std::uint8_t { queued, locking, reading, pulling, have_data, writing };
  OperationKind kind{};
  Range range{};
  std::uint32_t region = 0;  ///< of equal and copy
  unsigned target = 0;       ///< of copy
  unsigned source = 0;       ///< the member that is read
  Step step = Step::queued;
  MemberSet sent = 0;
  MemberSet acked = 0;
  MemberSet unreadable = 0;          ///< members that failed to read it
  std::uint64_t source_session = 0;  ///< when a pull was sent
};

/// Those of users by the users' numbers, and those that the group began for itself by numbers from
/// kOwn on.
///
/// Threads: one; pure.
class Operations : std::map<std::uint64_t, Operation> {
 public:
  using map::at, map::begin, map::clear, map::contains, map::empty, map::end, map::erase, map::find;
  using map::operator[];

  static constexpr std::uint64_t kOwn = std::uint64_t{1} << 63;

  std::uint64_t next_own() { return next_own_++; }
  bool has_own(OperationKind kind, std::uint32_t region, unsigned target) const {
    return std::any_of(begin(), end(), [&](const auto& entry) {
      return entry.second.kind == kind && entry.second.region == region &&
             entry.second.target == target;
    });
  }
  bool none_under_way() const {
    return std::all_of(begin(), end(), [](const auto& entry) {
      return entry.second.step == Operation::Step::queued;
    });
  }
  /// A copy of the list, for callers that end some of the operations on the way.
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, operation] : *this) numbers.push_back(number);
    return numbers;
  }
  /// Ends those that the group began for itself, and returns their numbers.
  std::vector<std::uint64_t> erase_own() {
    std::vector<std::uint64_t> numbers;
    for (auto own = lower_bound(kOwn); own != end(); own = erase(own))
      numbers.push_back(own->first);
    return numbers;
  }
  /// The member's session is over: its part in them counts no more.
  void forget(unsigned member) {
    for (auto& [number, operation] : *this) {
      operation.sent = without(operation.sent, member);
      operation.acked = without(operation.acked, member);
    }
  }

 private:
  std::uint64_t next_own_ = kOwn;
};

}  // namespace rnbd::mirror
