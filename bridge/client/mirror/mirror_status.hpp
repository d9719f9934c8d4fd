// SPDX-License-Identifier: BSD-3-Clause
// The present state of a mirror, for its users, for people and for monitoring.
#pragma once

#include <chrono>
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
  double pace = 0;            ///< regions a second in the last 10 s of its resync; 0: not known
  std::string trouble{};      ///< as its link says: why it is away; "" = it is not
  SessionStatus session{};
  bool votes = false;  ///< it has no copy
  bool discarded = false;
  bool hangs = false;      ///< it has a path, and leaves a request without an answer
  std::uint64_t room = 0;  ///< bytes of its own disk; 0: not known
};

/// The newest comparison of the copies.
struct VerifyStatus {
  Verification pass{};
  std::string from;      ///< the server whose data repair differences; "": nothing is repaired
  double pace = 0;       ///< regions a second in the last 10 s; 0: not known
  bool cut_off = false;  ///< the mirror was not attached any more
};

struct MirrorStatus {
  bool live = false;
  bool lacks_history = false;  ///< an operator has forced what no server that is there knows
  std::string trouble;         ///< the reason why it is not
  std::string dissolves_into;  ///< the server that stays; "": the mirror is not being dissolved
  std::string uri;             ///< of the mirror, with its present servers and its group
  std::uint64_t term = 0;
  std::uint64_t size = 0;   ///< bytes of the disk, once it is known
  std::uint32_t block = 1;  ///< bytes; it grows by multiples
  std::string growth;       ///< why it has not grown, when it was about to; "": nothing is known
  std::uint64_t region_bytes = 0;
  std::uint32_t unequal = 0;  ///< regions to be made equal after an unclean end
  std::uint64_t losses = 0;   ///< losses of a member in step
  std::uint64_t returns = 0;  ///< returns of a lost one
  std::uint32_t regions = 0;
  VerifyStatus verify{};
  std::uint64_t differences = 0;  ///< pieces of the disk in which copies were found to differ
  std::vector<MemberStatus> members;
};

/// The trouble with a member that holds up requests, and the way out.
std::string words_of_hanging(const std::string& server);
/// Likewise with one whose disk has failed several times, the last time with this errno. It is
/// tried again after `wait`.
std::string words_of_failing(const std::string& server, int error, std::chrono::minutes wait);

/// Why a mirror has kept its size, when all disks had room: this server has not recorded a larger
/// one, with this error or none. "": requests were under way.
std::string words_of_growth(const std::string& server, int error);

/// A member's record has promised this term, and what another server knows is hundreds of forced
/// decisions behind it.
std::string words_of_doubt(std::uint64_t promised, const std::string& other,
                           std::uint64_t its_term);
/// A member has refused `term` as too far ahead of its own one (0: not known). `others`: the
/// servers with records near that term; if there are `several`, they have all that is needed.
std::string words_of_shut_out(std::uint64_t own, std::uint64_t term, const std::string& others,
                              bool several);

/// Why a member is not used, in one sentence for people, from all that is known of it; "" = it is
/// in step, or brought up to date.
std::string why_not_used(const MemberStatus& member, const MirrorStatus& status);

/// Why the mirror does not grow although disks of members have, for people; "" = it need not, or is
/// about to.
std::string why_not_grown(const MirrorStatus& status);

/// Why a mirror is not attached, for people: who is there, which record stands against which, and
/// the way out where only a person can decide.
std::string why_not_attached(const MirrorStatus& status);

/// The other disks whose servers have said nothing yet, and have not failed to; "" = there is none.
std::string asked_beside(unsigned member, const MirrorStatus& status);

/// A warning for an operator who makes the mirror go on with this member alone: what its record
/// says, and what is lost.
std::string dangers_of_forcing(unsigned member, const MirrorStatus& status);

}  // namespace rnbd::mirror
