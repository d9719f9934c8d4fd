// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/memory_use.hpp"

namespace rnbd::mirror {

bool MemoryUse::may_return() const { return out_ == 0; }

}  // namespace rnbd::mirror
