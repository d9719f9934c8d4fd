// SPDX-License-Identifier: BSD-3-Clause
// Listens on an address of the connection manager.
#pragma once

#include <memory>
#include <tl/expected.hpp>

#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs::verbs {

/// Binds and listens.
///
/// Errors: ENODEV, EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENOTSUP (the address's device cannot do
///          always-invalidate), each with the remedy.
tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        const AcceptorOptions& options);

}  // namespace rtrs::verbs
