// SPDX-License-Identifier: BSD-3-Clause
// delay:OPTIONS:SPEC - storage that takes its time, for testing and for modelling slow disks.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `delay:OPTIONS:SPEC`. A request waits before it reaches the wrapped storage, so one that
/// waits longer is overtaken by those behind it.
///
/// Errors: EINVAL (options), and those of the wrapped storage.
tl::expected<std::unique_ptr<Backend>, Failure> open_delay(const std::string& specification,
                                                           const BackendOptions& options);

}  // namespace rnbd
