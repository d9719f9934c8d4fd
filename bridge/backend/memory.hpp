// SPDX-License-Identifier: BSD-3-Clause
// memory:SIZE - a disk in the server's memory, for tests and scratch space. Gone when it is closed.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `memory:SIZE`. Writes allocate memory, 64 KiB at a time, and discards free it.
///
/// Errors: EINVAL (not a size), ENOMEM.
tl::expected<std::unique_ptr<Backend>, Failure> open_memory(const std::string& size,
                                                            const BackendOptions& options);

}  // namespace rnbd
