// SPDX-License-Identifier: BSD-3-Clause
// What the options of a client mean.
#pragma once

#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/client_session.hpp"

namespace rtrs {

/// The options with nothing left to be chosen.
ClientOptions with_defaults(ClientOptions options);

/// Errors: EINVAL, with what to do about it.
tl::expected<void, Failure> check(const ClientOptions& options);

/// What the session's machine has to know of a path, and of all options.
ClientSessionOptions::Path session_path(const ClientOptions& options, const PathAddress& address);
ClientSessionOptions session_options(const ClientOptions& options);

}  // namespace rtrs
