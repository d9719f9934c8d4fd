// SPDX-License-Identifier: BSD-3-Clause
// rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][,conf=FILE,id=USER] - an image of a Ceph cluster.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Loads rnbd-backend-rbd.so, connects to the cluster and opens the image. For writing it takes the
/// image's exclusive lock and keeps it, which fences a former holder off.
///
/// When the cluster has fenced this server off, every request fails with EIO, and the storage
/// counts as gone: it is to be opened anew.
///
/// Errors: EINVAL (not of that form), ENOENT (no such pool, image or snapshot), EBUSY (another
/// client holds the lock), EOPNOTSUPP (the image has no exclusive lock), ELIBACC (no module),
/// ETIMEDOUT, EACCES, ...
tl::expected<std::unique_ptr<Backend>, Failure> open_rbd(const std::string& rest,
                                                         const BackendOptions& options);

}  // namespace rnbd
