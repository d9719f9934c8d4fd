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

/// Runs on the caller's io_context; cancel it by its cancellation slot (a deadline).
///
/// Errors: the system's errno with a sentence, or EPROTO when the peer speaks something else.
boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(PathAddress address,
                                                                      wire::ConnectRequest request,
                                                                      std::uint16_t digests);

/// No delay for small frames, and an unresponsive peer is given up before heartbeats would.
void tune_socket(int socket);

}  // namespace rtrs::tcp
