// SPDX-License-Identifier: BSD-3-Clause
// The steps of an OPEN or CLAIM, and the table of those that may follow each other.
#pragma once

#include <array>
#include <cstdint>

namespace rnbd {

enum class OpenStep : std::uint8_t {
  judging,      ///< the reactor decides about the next step; nothing hangs
  renewing,     ///< a thread looks where the name of its export leads to now, or how large that is
  finding,      ///< a thread looks for its file, and opens it
  making_room,  ///< another session may write, and is ended or about to leave
  joining,      ///< likewise, but then the client writes beside others: a machine migrates
  recording,    ///< a thread records its reservation
  over,         ///< answered
  late,         ///< answered because it took too long; its work may go on
};

inline constexpr std::array kOpenSteps{
    OpenStep::judging, OpenStep::renewing,  OpenStep::finding, OpenStep::making_room,
    OpenStep::joining, OpenStep::recording, OpenStep::over,    OpenStep::late};

struct OpenTransition {
  OpenStep from;
  OpenStep to;
};

inline constexpr OpenTransition kOpenTransitions[] = {
    {OpenStep::judging, OpenStep::renewing},
    {OpenStep::judging, OpenStep::finding},
    {OpenStep::judging, OpenStep::making_room},
    {OpenStep::judging, OpenStep::joining},
    {OpenStep::judging, OpenStep::recording},
    {OpenStep::judging, OpenStep::over},  // refused, a reader, or one that took part before
    {OpenStep::renewing, OpenStep::judging},
    {OpenStep::renewing, OpenStep::over},  // another one hangs there
    {OpenStep::renewing, OpenStep::late},
    {OpenStep::finding, OpenStep::judging},
    {OpenStep::finding, OpenStep::over},  // another one hangs there
    {OpenStep::finding, OpenStep::late},
    {OpenStep::making_room, OpenStep::judging},
    {OpenStep::making_room, OpenStep::late},
    {OpenStep::joining, OpenStep::recording},
    {OpenStep::joining, OpenStep::late},
    {OpenStep::recording, OpenStep::over},
    {OpenStep::recording, OpenStep::late},
};

constexpr bool may_follow(OpenStep from, OpenStep to) {
  for (const OpenTransition& row : kOpenTransitions) {
    if (row.from == from && row.to == to) return true;
  }
  return false;
}

/// No step may follow.
constexpr bool is_end(OpenStep step) {
  for (const OpenTransition& row : kOpenTransitions) {
    if (row.from == step) return false;
  }
  return true;
}

/// Newer OPENs, CLOSEs, and CLAIMs wait until the step has ended, except those CLAIMs that
/// MessageOrder lets go together.
constexpr bool reserves(OpenStep step) {
  return step == OpenStep::joining || step == OpenStep::recording;
}

}  // namespace rnbd
