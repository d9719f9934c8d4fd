// SPDX-License-Identifier: BSD-3-Clause
// The clock of all that is not simulated.
#pragma once

#include <chrono>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Any thread.
inline Instant now() { return Instant{std::chrono::steady_clock::now().time_since_epoch()}; }

}  // namespace rtrs
