// SPDX-License-Identifier: BSD-3-Clause
// rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][,conf=FILE,id=USER] - an image of a Ceph cluster.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Loads rnbd-backend-rbd.so, connects to the cluster and opens the image. To write, it takes the
/// image's exclusive lock and keeps it. The lock fences its former holder off: the cluster refuses
/// that one's requests.
///
/// When the cluster has fenced this server off, every request fails with EIO, and the storage
/// counts as gone. It must be opened again.
///
/// Errors: EINVAL (not of that form), ENOENT (no such pool, image or snapshot), EBUSY (another
///         client has the lock), EOPNOTSUPP (no exclusive lock), ELIBACC (no module), ETIMEDOUT,
///         EACCES, ...
tl::expected<std::unique_ptr<Backend>, Failure> open_rbd(const std::string& rest,
                                                         const BackendOptions& options);

}  // namespace rnbd
