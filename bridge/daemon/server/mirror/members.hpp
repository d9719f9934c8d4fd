// SPDX-License-Identifier: BSD-3-Clause
// The storages of rnbd-server as members of mirror groups.
#pragma once

#include "bridge/daemon/server/annex.hpp"

namespace rnbd::mirror {

extern const DaemonAnnex kMembers;

}  // namespace rnbd::mirror
