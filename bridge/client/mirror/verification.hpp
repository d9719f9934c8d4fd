// SPDX-License-Identifier: BSD-3-Clause
// A comparison of all copies of a mirror's disk, and how far it has come.
#pragma once

#include <cstdint>

#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// One pass over the disk, unit by unit.
///
/// Invariant: the counts are of units that have ended, and `region` and `unit` are behind all that
///            have begun.
/// Threads:   one; pure.
struct Verification {
  enum class State : std::uint8_t {
    none,     ///< there was no pass yet
    running,  ///< units are to begin, or are under way
    done,     ///< the end of the disk was reached
    stopped,  ///< by an operator
    single,   ///< fewer than two members are in step, or the source is not
  };
  State state = State::none;
  unsigned source = kMaxMembers;  ///< member whose data the others get; kMaxMembers: nobody does
  std::uint32_t region = 0;       ///< of the next unit
  std::uint32_t unit = 0;         ///< of the region
  MemberSet members = 0;          ///< in step when it began
  MemberSet everywhere = 0;       ///< of these, all of whose units were compared that have ended
  std::uint64_t compared = 0;     ///< sectors
  std::uint64_t left_out = 0;     ///< sectors of regions that are to be made equal anyway
  std::uint32_t different = 0;    ///< units
  std::uint32_t repaired = 0;     ///< units of these in which all members are equal now

  bool is_running() const { return state == State::running; }
  bool repairs() const { return source != kMaxMembers; }
};

/// A unit in which members in step do not have the same data.
struct Difference {
  std::uint64_t operation = 0;
  Range range{};
  unsigned reference = 0;    ///< member with which the others were compared
  MemberSet different = 0;   ///< members with other data
  MemberSet unreadable = 0;  ///< members whose disks failed to read it
};

}  // namespace rnbd::mirror
