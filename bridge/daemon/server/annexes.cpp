// SPDX-License-Identifier: BSD-3-Clause
// The annexes of rnbd-server.
#include <array>
#include <built_annexes.hpp>

#include "bridge/daemon/server/annex.hpp"
#if RNBDKIT_WITH_BRICK
#include "bridge/daemon/server/brick/bricks.hpp"
#endif
#if RNBDKIT_WITH_MIRROR
#include "bridge/daemon/server/mirror/members.hpp"
#endif

namespace rnbd {

std::span<const DaemonAnnex* const> daemon_annexes() {
  static constexpr std::array<const DaemonAnnex*, RNBDKIT_WITH_MIRROR + RNBDKIT_WITH_BRICK> kAll {
#if RNBDKIT_WITH_BRICK
    &kBricks,
#endif
#if RNBDKIT_WITH_MIRROR
        &mirror::kMembers,
#endif
  };
  return kAll;
}

}  // namespace rnbd
