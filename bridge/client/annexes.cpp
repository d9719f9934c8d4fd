// SPDX-License-Identifier: BSD-3-Clause
// The kinds of disks beyond a device of one server.
#include <array>
#include <built_annexes.hpp>

#include "bridge/client/annex.hpp"
#if RNBDKIT_WITH_MIRROR
#include "bridge/client/mirror/mirror_annex.hpp"
#endif

namespace rnbd {

#if RNBDKIT_WITH_BRICK
extern const ClientAnnex kPassiveAnnex;  // brick/passive_annex.cpp
#endif

std::span<const ClientAnnex* const> client_annexes() {
  static constexpr std::array<const ClientAnnex*, RNBDKIT_WITH_MIRROR + RNBDKIT_WITH_BRICK> kAll {
#if RNBDKIT_WITH_MIRROR
    &mirror::kAnnex,
#endif
#if RNBDKIT_WITH_BRICK
        &kPassiveAnnex,
#endif
  };
  return kAll;
}

}  // namespace rnbd
