// SPDX-License-Identifier: BSD-3-Clause
// The present state of a mirror, for people and monitoring.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/client/mirror/group.hpp"
#include "bridge/client/shared_session.hpp"

namespace rnbd::mirror {

/// The present state of a member.
struct MemberStatus {
  std::string server;
  Group::Progress progress{};
  Membership::Record record{};
  std::uint32_t to_copy = 0;  ///< regions, when its resync began
  std::string trouble{};      ///< why it is away; "" = it is not
  SessionStatus session{};
  bool discarded = false;
  bool hangs = false;  ///< it has a path, and leaves a request without an answer
};

struct MirrorStatus {
  bool live = false;
  std::string trouble;  ///< the reason why it is not
  std::string uri;      ///< of the mirror, with its present servers and its group
  std::uint64_t term = 0;
  std::uint64_t size = 0;  ///< bytes of the disk, once it is known
  std::uint64_t region_bytes = 0;
  std::uint32_t unequal = 0;  ///< regions to be made equal after an unclean end
  std::uint64_t losses = 0;   ///< losses of a member in step
  std::uint64_t returns = 0;  ///< returns of a lost one
  std::vector<MemberStatus> members;
};

/// The trouble with a member that holds up requests, and the way out.
std::string words_of_hanging(const std::string& server);

/// Why a mirror is not attached, for people: who is there, which record stands against which, and
/// the way out where only a person can decide.
std::string why_not_attached(const MirrorStatus& status);

}  // namespace rnbd::mirror
