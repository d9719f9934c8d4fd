// SPDX-License-Identifier: BSD-3-Clause
// Opens one connection of a path over TCP: connect, exchange the hello records.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <tl/expected.hpp>

#include "rdma/transport/factory.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs::tcp {

/// See rtrs::open_connection().
boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(ConnectOptions options,
                                                                      wire::ConnectRequest request);

/// A non-blocking TCP socket that no program started by this one inherits (Asio's own are
/// inherited, and a connection stays open as long as anybody has its descriptor).
///
/// Errors: -1 and errno.
int open_socket(int family);

/// Small frames leave at once. Silent peers are the heartbeat's business.
void tune_socket(int socket);

}  // namespace rtrs::tcp
