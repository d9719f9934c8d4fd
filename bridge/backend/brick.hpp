// SPDX-License-Identifier: BSD-3-Clause
// brick:MEMORY[,file=TIER][,meta=PATH][,new][,adopt] - blocks of 2 MiB in memory, which clients may
// map. With a tier, a disk below the memory, there can be more blocks than fit into memory, and
// they outlive the server.
#pragma once

#include <memory>
#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Opens `brick:SPECIFICATION`. Read as a disk, an unallocated block is all zeros, and a write
/// allocates its block.
///
/// Errors: EINVAL (sizes, options); ENOMEM; EBUSY (in use elsewhere); those of the files. EBADMSG:
///         the journal is damaged, or none. ENOENT: a tier with data lacks its journal. ESTALE:
///         they do not match. ENOTEMPTY: `new` or `adopt` has nothing to do.
tl::expected<std::unique_ptr<Backend>, Failure> open_brick(const std::string& specification,
                                                           const BackendOptions& options);

}  // namespace rnbd
