// SPDX-License-Identifier: BSD-3-Clause
// null:SIZE - reads zeroes and forgets writes: measures everything but the storage.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `null:SIZE`. Errors: EINVAL (not a size).
tl::expected<std::unique_ptr<Backend>, Failure> open_null(const std::string& size,
                                                          const BackendOptions& options);

}  // namespace rnbd
