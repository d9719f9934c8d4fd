// SPDX-License-Identifier: BSD-3-Clause
// The kinds of disks beyond a device of one server.
#include "bridge/client/annex.hpp"
#include "bridge/client/brick/passive_annex.hpp"
#include "bridge/client/mirror/mirror_annex.hpp"

namespace rnbd {

std::span<const ClientAnnex* const> client_annexes() {
  static constexpr const ClientAnnex* kAll[] = {&mirror::kAnnex, &kPassiveAnnex};
  return kAll;
}

}  // namespace rnbd
