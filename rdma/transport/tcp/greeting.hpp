// SPDX-License-Identifier: BSD-3-Clause
// A client's first words: TLS or not, then its hello.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/secure.hpp"

namespace rtrs::tcp {

struct Greeting {
  std::unique_ptr<tls::Session> tls;  ///< null: in clear
  std::array<std::byte, sizeof(Hello::record)> record{};
  std::uint16_t digests = 0;  ///< that both ends want
};

/// Why a client does not come in.
struct Refusal {
  LogLevel level = LogLevel::info;
  std::string text;
  bool answered = false;  ///< the client was told, and should have the time to read that
  /// It has not proven whose it is, by `how`; `user` is what it said.
  bool of_auth = false;
  std::string how = {};
  std::string user = {};
};

/// Reads it. The socket's owner keeps the deadline, and may close it meanwhile.
///
/// Source: docs/protocol.md, TCP binding, TLS.
boost::asio::awaitable<tl::expected<Greeting, Refusal>> receive_greeting(
    AsioSocket& socket, const AcceptorOptions& options);

/// Lets a client read why it was refused: unread data from it would make the system discard that
/// answer. Ends when the client or the socket's owner closes.
boost::asio::awaitable<void> let_read(AsioSocket& socket);

}  // namespace rtrs::tcp
