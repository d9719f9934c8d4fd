// SPDX-License-Identifier: BSD-3-Clause
// Checks the options of a client and derives the session's options from them.
#pragma once

#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/client/session.hpp"
#include "rdma/transport/factory.hpp"

namespace rtrs {

/// The options with nothing left to be chosen.
ClientOptions with_defaults(ClientOptions options);

/// Errors: EINVAL, with the remedy.
tl::expected<void, Failure> check(const ClientOptions& options);

/// The session machine's share of the options: of one path, and of all.
ClientSessionOptions::Path session_path(const ClientOptions& options, const PathAddress& address);
ClientSessionOptions session_options(const ClientOptions& options);

/// For a connection to `address` that may take as long as `patience`.
ConnectOptions connect_options(const ClientOptions& options, const PathAddress& address,
                               Duration patience);

}  // namespace rtrs
