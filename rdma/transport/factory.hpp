// SPDX-License-Identifier: BSD-3-Clause
// Which transports there are: one line each in factory.cpp.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <memory>
#include <optional>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/reactor.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

namespace tls {
class Credentials;
}

/// An established connection, and the server's answer to it.
struct Opened {
  std::unique_ptr<Connection> connection;
  std::array<std::byte, sizeof(wire::ConnectResponse)> record{};
};

/// Settings shared by the connections of one path.
struct ConnectOptions {
  PathAddress address;
  std::vector<boost::asio::ip::address> addresses;  ///< of the host, best first
  bool header_digest = true;
  bool data_digest = true;
  Duration patience = std::chrono::seconds{10};      ///< until an attempt is given up
  std::optional<TlsKeys> tls_keys = {};              ///< none = in clear
  std::shared_ptr<const tls::Credentials> tls = {};  ///< read from their files
  std::optional<TlsKeys> auth_keys = {};             ///< none = nothing is proven without TLS
  Log log;                                           ///< of events of the device
  const OptionWords* words = &kProgramWords;
};

/// Opens one connection of a path, on the caller's io_context, and ends with it at the latest.
/// `context` is shared by the connections of the path.
///
/// Errors: the system's errno with a sentence, or EPROTO when the peer speaks something else. A
/// refusal is no error: it is in the record.
boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(
    ConnectOptions options, wire::ConnectRequest request, QueueSizes sizes,
    std::shared_ptr<PathContext>& context);

/// Binds and listens.
///
/// Errors: EADDRINUSE, EACCES, EADDRNOTAVAIL, EINVAL, ENODEV, ENOTSUP, each with the remedy.
tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        AcceptorOptions options);

/// Takes over a TCP socket that listens already (socket activation).
///
/// Errors: EINVAL when it does not.
tl::expected<std::unique_ptr<Acceptor>, Failure> adopt(Reactor& reactor, int descriptor,
                                                       AcceptorOptions options);

}  // namespace rtrs
