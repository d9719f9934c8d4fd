// SPDX-License-Identifier: BSD-3-Clause
// The end of a client's request.
#pragma once

#include "bridge/protocol/messages.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Ends a request; an errno that the wire cannot carry becomes EIO.
void finish(rtrs::ServerRequest& request, int error);

/// Ends a request with `bytes` and zeroes up to the size that the client asked for; EINVAL when it
/// asked for less.
void finish_with(rtrs::ServerRequest& request, wire::ConstBytes bytes);

}  // namespace rnbd
