// SPDX-License-Identifier: BSD-3-Clause
// The kinds of disks beyond a device of one server.
#include "bridge/ctl/annexes.hpp"

#include <array>
#include <built_annexes.hpp>
#if RNBDKIT_WITH_BRICK
#include "bridge/ctl/brick/brick_annex.hpp"
#endif
#if RNBDKIT_WITH_MIRROR
#include "bridge/ctl/mirror/mirror_annex.hpp"
#endif

namespace rnbd {

std::span<const CtlAnnex* const> ctl_annexes() {
  static constexpr std::array<const CtlAnnex*, RNBDKIT_WITH_MIRROR + RNBDKIT_WITH_BRICK> kAll {
#if RNBDKIT_WITH_BRICK
    &kBrickAnnex,
#endif
#if RNBDKIT_WITH_MIRROR
        &kMirrorAnnex,
#endif
  };
  return kAll;
}

}  // namespace rnbd
