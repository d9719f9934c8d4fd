// SPDX-License-Identifier: BSD-3-Clause
// Options of the parts of a server, made of ServerOptions.
#pragma once

#include <tl/expected.hpp>

#include "rdma/core/admission.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"

namespace rtrs {

/// With the numbers that depend on the machine.
ServerOptions with_defaults(ServerOptions options);
/// Errors: EINVAL, with the way out.
tl::expected<void, Failure> check(const ServerOptions& options);

ServerSessionOptions session_options(const ServerOptions& options);
AcceptorOptions acceptor_options(const ServerOptions& options);
AdmissionLimits admission_limits(const ServerOptions& options);

}  // namespace rtrs
