// SPDX-License-Identifier: BSD-3-Clause
// mode=passive, for a client that knows nothing of bricks.
#pragma once

#include "bridge/client/annex.hpp"

namespace rnbd {

extern const ClientAnnex kPassiveAnnex;

}  // namespace rnbd
