// SPDX-License-Identifier: BSD-3-Clause
// The bricks of rnbd-server, and their state for people.
#pragma once

#include "bridge/daemon/server/annex.hpp"

namespace rnbd {

extern const DaemonAnnex kBricks;

}  // namespace rnbd
