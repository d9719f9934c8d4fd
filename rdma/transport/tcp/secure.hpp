// SPDX-License-Identifier: BSD-3-Clause
// TLS's handshake on a socket, and single records behind it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <span>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"
#include "rdma/transport/tls/session.hpp"

namespace rtrs::tcp {

using AsioSocket = boost::asio::ip::tcp::socket;

/// The ALPN name of both ends, so that no other service behind the same keys can be taken for us.
inline constexpr const char* kTlsProtocol = "rtrs/1";

/// Shakes hands; the socket's deadline is its owner's. Public-key work is done on `workers`, or
/// here without any.
///
/// Errors: Session::failure(), when the peer has been told; ECANCELED when the socket was closed
/// meanwhile, or the system's.
boost::asio::awaitable<tl::expected<void, Failure>> shake_hands(
    AsioSocket& socket, tls::Session& session, boost::asio::any_io_executor workers = {});

/// Reads exactly `into`, through the session if there is one. Errors: end of file, the socket's.
boost::asio::awaitable<boost::system::error_code> read_all(AsioSocket& socket,
                                                           tls::Session* session,
                                                           std::span<std::byte> into);
boost::asio::awaitable<boost::system::error_code> write_all(AsioSocket& socket,
                                                            tls::Session* session,
                                                            std::span<const std::byte> from);

}  // namespace rtrs::tcp
