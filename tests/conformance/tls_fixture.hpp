// SPDX-License-Identifier: BSD-3-Clause
// Two TCP queue pairs over loopback, with TLS between them.
#pragma once

#include <poll.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

#include "rdma/transport/tls/session.hpp"
#include "tests/conformance/tcp_fixture.hpp"
#include "tests/unit/transport/tls_keys.hpp"

namespace rtrs::conformance {

/// Both ends of a session on a pair of sockets.
class TlsPair {
 public:
  explicit TlsPair(const TlsKeys& keys) : sockets{connected_sockets()} {
    sessions[0] = make(keys, tls::Role::client);
    sessions[1] = make(keys, tls::Role::server);
  }

  /// Both shake hands until both are through. Errors: std::runtime_error
  void shake_hands() {
    using Step = tls::Session::Step;
    std::array<Step, 2> steps{Step::receive, Step::receive};
    while (steps[0] != Step::done || steps[1] != Step::done) {
      for (unsigned i = 0; i < 2; ++i) {
        if (steps[i] == Step::done) continue;
        sessions[i]->fetch(sockets[i]);
        steps[i] = sessions[i]->shake_hands();
        sessions[i]->flush(sockets[i]);
        if (steps[i] == Step::failed) throw std::runtime_error{sessions[i]->failure().text};
      }
    }
  }

  std::array<tcp::Stream, 2> streams() {
    return {tcp::Stream{sockets[0], std::move(sessions[0])},
            tcp::Stream{sockets[1], std::move(sessions[1])}};
  }

  std::array<int, 2> sockets;
  std::array<std::unique_ptr<tls::Session>, 2> sessions;

 private:
  static std::unique_ptr<tls::Session> make(const TlsKeys& keys, tls::Role role) {
    auto credentials = tls::Credentials::load(keys, role);
    if (!credentials) throw std::runtime_error{credentials.error()};
    auto session =
        tls::Session::create({.credentials = *credentials,
                              .server_name = role == tls::Role::client ? "localhost" : "",
                              .protocol = "rtrs/1"});
    if (!session) throw std::runtime_error{session.error().text};
    return *std::move(session);
  }
};

struct WithPsk {
  static std::array<tcp::Stream, 2> streams() {
    const test::KeyDirectory keys;
    TlsPair pair{keys.psk("host1", test::hex_key())};
    pair.shake_hands();
    return pair.streams();
  }
};

struct WithCertificates {
  static std::array<tcp::Stream, 2> streams() {
    static const test::TestAuthority authority;
    const test::KeyDirectory keys;
    TlsPair pair{authority.fill(keys)};
    pair.shake_hands();
    return pair.streams();
  }
};

using TcpWithPsk = TcpFixture<false, WithPsk>;
using TcpWithCertificates = TcpFixture<true, WithCertificates>;

}  // namespace rtrs::conformance
