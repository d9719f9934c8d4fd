// SPDX-License-Identifier: BSD-3-Clause
// Advice for a system that does not let RDMA lock its memory.
#pragma once

namespace rtrs {

/// Memory that a device may use is locked, and there is a limit to that.
inline constexpr const char* kMemlockAdvice =
    "raise the limit of locked memory: 'ulimit -l', or LimitMEMLOCK= in the unit";

}  // namespace rtrs
