// SPDX-License-Identifier: BSD-3-Clause
// Listens on a TCP socket and reads the hello of each client.
#pragma once

#include <memory>
#include <tl/expected.hpp>

#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs::tcp {

/// Binds and listens.
///
/// Errors: EADDRINUSE, EACCES, EADDRNOTAVAIL, EINVAL, each with the remedy.
tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        AcceptorOptions options);

/// Takes over a socket that listens already (socket activation).
///
/// Errors: EINVAL when it does not.
tl::expected<std::unique_ptr<Acceptor>, Failure> adopt(Reactor& reactor, int descriptor,
                                                       AcceptorOptions options);

}  // namespace rtrs::tcp
