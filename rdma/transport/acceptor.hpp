// SPDX-License-Identifier: BSD-3-Clause
// The way in for clients: listeners and the connections that they accept.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/core/option_words.hpp"
#include "rdma/tls.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/refusal_log.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

namespace tls {
class KeyStore;
}

/// A client that has not come in yet: its connect request is read, and it waits for the answer.
/// Destroyed without one, it is turned away.
///
/// Threads: reject() where it came in; open() and accept() on the reactor of its session.
class Incoming {
 public:
  virtual ~Incoming() = default;

  bool may_be_linux = false;  ///< comes over a transport that Linux speaks
  std::string peer;           ///< for logs, "127.0.0.1:40000"
  Identity identity;          ///< proven by the client
  std::array<std::byte, sizeof(wire::ConnectRequest)> record{};

  /// Refuses with a record that says why.
  virtual void reject(const wire::ConnectResponse& answer) = 0;
  /// Makes the queue pair, so that receives can be posted before the client learns that it is in.
  ///
  /// Errors: ENOMEM, EMFILE, or EXDEV when the path's other connections use another device.
  virtual tl::expected<std::unique_ptr<Connection>, Failure> open(
      const QueueSizes& sizes, std::shared_ptr<PathContext>& context) = 0;
  /// Tells the client that it is in.
  ///
  /// Errors: broke_while_accepted() when it is gone already, or the device's refusal.
  virtual tl::expected<void, Failure> accept(const wire::ConnectResponse& answer) = 0;
};

/// "a connection broke while it was accepted: ...": ECONNRESET, whichever error the system reports,
/// so that it can be told from a refusal of the device.
inline Failure broke_while_accepted(int error) {
  return {ECONNRESET,
          std::string{"a connection broke while it was accepted: "} + std::strerror(error)};
}

/// The TLS of a listener's clients.
struct ListenerTls {
  TlsMode mode = TlsMode::off;
  std::shared_ptr<tls::KeyStore> keys;  ///< unless it is off
  /// The threads for public-key work, so that it holds up no reactor.
  boost::asio::any_io_executor workers;
};

/// The server, for its acceptors.
///
/// Threads: reactor 0.
class AcceptorOwner {
 public:
  /// The number of connections that the server takes yet, beside those with a handshake under way.
  virtual unsigned room() const = 0;
  /// A peer was turned away before it was a client.
  virtual void on_refused(LogLevel level, const std::string& peer, const std::string& why) = 0;
  /// The same for one that has not proven whose it is.
  virtual void on_unproven(const AuthRefusal& refusal) = 0;

 protected:
  ~AcceptorOwner() = default;
};

struct AcceptorOptions {
  AcceptorOwner* owner = nullptr;  ///< over RDMA it is asked nothing
  unsigned max_handshakes = 64;
  Duration handshake_timeout = std::chrono::seconds{10};
  bool header_digest = true;
  bool data_digest = true;
  bool need_keys = false;  ///< over RDMA: reserve_keys() of every connection must succeed
  ListenerTls tls;
  Log log;
  const OptionWords* words = &kProgramWords;
};

/// Listens on one address. Bound and listening from its creation on; clients come in after start().
///
/// Threads: reactor 0, except the constructor and address().
class Acceptor {
 public:
  /// Takes a client; owns it from then on.
  using Welcome = std::function<void(std::unique_ptr<Incoming>)>;

  virtual ~Acceptor() = default;
  virtual void start(Welcome welcome) = 0;
  /// No more clients, and those that have not finished their request are sent away.
  virtual void close() = 0;
  /// The address at which it listens, with the real port ("tcp:127.0.0.1:1234", "rdma:[::]:1234").
  virtual std::string address() const = 0;
};

}  // namespace rtrs
