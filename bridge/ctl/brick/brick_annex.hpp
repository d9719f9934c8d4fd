// SPDX-License-Identifier: BSD-3-Clause
// Bricks, for rnbd-ctl: the command of a server about them.
#pragma once

#include "bridge/ctl/annexes.hpp"

namespace rnbd {

inline constexpr ProgramWord kBrickWords[] = {
    {"brick", "[EXPORT]", CtlSide::server,
     "How full bricks are, and which session has mapped what; of one also its blocks."}};

inline constexpr CtlAnnex kBrickAnnex{.name = "brick", .words = kBrickWords};

}  // namespace rnbd
