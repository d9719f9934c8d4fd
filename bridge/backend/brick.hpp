// SPDX-License-Identifier: BSD-3-Clause
// brick:MEMORY[,file=TIER][,meta=PATH] - blocks of 2 MiB in memory, which clients may map; with a
// tier there can be more of them than memory has room for, and they outlive the server.
#pragma once

#include <memory>
#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `brick:SPECIFICATION`. As a disk it reads as zeros where nothing is allocated, and a write
/// allocates.
///
/// Errors: EINVAL (sizes, options), ENOMEM, EBADMSG (the meta file is damaged, or none), EBUSY (in
/// use elsewhere), those of the files.
tl::expected<std::unique_ptr<Backend>, Failure> open_brick(const std::string& specification,
                                                           const BackendOptions& options);

}  // namespace rnbd
