// Opens one connection of a path over TCP: resolve, connect, exchange the hello records.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs::tcp {

/// A connection that stands, and what the server said to it.
struct Opened {
  std::unique_ptr<Connection> connection;
  std::array<std::byte, sizeof(wire::ConnectResponse)> record;
};

/// Runs on the caller's io_context, and ends with it at the latest.
///
/// Errors: the system's errno with a sentence, or EPROTO when the peer speaks something else.
boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(PathAddress address,
                                                                      wire::ConnectRequest request,
                                                                      std::uint16_t digests);

/// A non-blocking TCP socket that no program started by this one inherits (Asio's own are
/// inherited, and a connection stays open as long as anybody has its descriptor).
///
/// Errors: -1 and errno.
int open_socket(int family);

/// Small frames leave at once. Silent peers are the heartbeat's business.
void tune_socket(int socket);

}  // namespace rtrs::tcp
