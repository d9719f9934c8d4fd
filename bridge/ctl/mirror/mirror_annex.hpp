// SPDX-License-Identifier: BSD-3-Clause
// Mirrors, for rnbd-ctl: the command of a client about them, and their members for `check`.
#pragma once

#include "bridge/ctl/annexes.hpp"

namespace rnbd {

extern const CtlAnnex kMirrorAnnex;

}  // namespace rnbd
