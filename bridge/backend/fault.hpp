// SPDX-License-Identifier: BSD-3-Clause
// fault:OPTIONS:SPEC - storage that fails now and then, to test its users.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `fault:OPTIONS:SPEC`. A request that is chosen to fail never reaches the wrapped storage.
///
/// Errors: EINVAL (options), and those of the wrapped storage.
tl::expected<std::unique_ptr<Backend>, Failure> open_fault(const std::string& specification,
                                                           const BackendOptions& options);

}  // namespace rnbd
