// SPDX-License-Identifier: BSD-3-Clause
// A client that comes over TCP: its first words, which are TLS or not and its hello, and the
// answer.
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
#include "rdma/transport/tcp/stream.hpp"

namespace rtrs::tcp {

struct Greeting {
  std::unique_ptr<tls::Session> tls;  ///< null: in clear
  std::array<std::byte, sizeof(Hello::record)> record{};
  std::uint16_t digests = 0;  ///< that both ends want
};

/// The reason why a client does not come in.
struct Refusal {
  LogLevel level = LogLevel::info;
  std::string text;
  bool answered = false;  ///< the client was told, and should have the time to read that
  /// The peer has not proven whose it is, by `how`; `user` is what it said.
  bool of_auth = false;
  std::string how = {};
  std::string user = {};
};

/// Reads it. The socket's owner keeps the deadline, and may close it meanwhile.
///
/// Source: docs/protocol.md, TCP binding, TLS.
boost::asio::awaitable<tl::expected<Greeting, Refusal>> receive_greeting(
    AsioSocket& socket, const AcceptorOptions& options);

/// A client that has said its hello and waits for an answer.
class TcpIncoming final : public Incoming {
 public:
  TcpIncoming(Stream stream, std::uint16_t digests);

  void reject(const wire::ConnectResponse& answer) override;
  tl::expected<std::unique_ptr<Connection>, Failure> open(const QueueSizes&,
                                                          std::shared_ptr<PathContext>&) override;
  tl::expected<void, Failure> accept(const wire::ConnectResponse& answer) override;

 private:
  bool send_record(const wire::ConnectResponse& answer, std::uint16_t digests);

  Stream own_;                ///< until open()
  Stream* stream_ = nullptr;  ///< where the answer goes
  std::uint16_t digests_;
};

/// Lets a client read why it was refused: unread data from it would make the system discard that
/// answer. Ends when the client or the socket's owner closes.
boost::asio::awaitable<void> let_read(AsioSocket& socket);

}  // namespace rtrs::tcp
