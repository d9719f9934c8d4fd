// SPDX-License-Identifier: BSD-3-Clause
// The faces of rnbd-bridge beside NBD.
#include <array>
#include <built_annexes.hpp>

#include "bridge/daemon/bridge/annex.hpp"

namespace rnbd {

#if RNBDKIT_WITH_VHOST
extern const BridgeAnnex kVhostAnnex;  // vhost/vhost_annex.cpp
#endif

std::span<const BridgeAnnex* const> bridge_annexes() {
  static constexpr std::array<const BridgeAnnex*, RNBDKIT_WITH_VHOST> kAll {
#if RNBDKIT_WITH_VHOST
    &kVhostAnnex,
#endif
  };
  return kAll;
}

const BridgeAnnex* annex_of_address(std::string_view address) {
  for (const BridgeAnnex* annex : bridge_annexes()) {
    if (address.starts_with(annex->scheme)) return annex;
  }
  return nullptr;
}

}  // namespace rnbd
