// SPDX-License-Identifier: BSD-3-Clause
// Two ends of TLS, and a wire between them that a test can cut after any byte.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "rdma/transport/tls/session.hpp"
#include "tests/unit/transport/tls_keys.hpp"

namespace rtrs::test {

/// 0 is the client's end, 1 the server's.
class TlsWire {
 public:
  using Step = tls::Session::Step;
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  explicit TlsWire(std::array<std::shared_ptr<const tls::Credentials>, 2> credentials) {
    for (unsigned i = 0; i < 2; ++i) {
      std::array<int, 2> pair{};
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) == 0);
      sockets[i] = pair[0];
      inner_[i] = pair[1];
      auto made = tls::Session::create({.credentials = credentials[i],
                                        .server_name = i == 0 ? "localhost" : "",
                                        .protocol = "rtrs/1"});
      REQUIRE(made.has_value());
      sessions[i] = *std::move(made);
    }
  }
  TlsWire(const TlsWire&) = delete;
  TlsWire& operator=(const TlsWire&) = delete;
  ~TlsWire() {
    for (unsigned i = 0; i < 2; ++i) {
      close(sockets[i]);
      close(inner_[i]);
    }
  }

  /// Only so many more bytes arrive at this end, and then the end of the stream.
  void cut_after(unsigned end, std::size_t bytes) { left_[end] = bytes; }
  /// Bytes that have arrived at this end.
  std::size_t carried(unsigned end) const { return carried_[end]; }

  /// Carries what both have sent.
  void carry() {
    for (unsigned to = 0; to < 2; ++to) carry_to(to);
  }

  /// Until `of` is through, or has failed, or looks in vain for ever.
  void shake_hands(unsigned of) {
    for (turns = 0; steps[of] == Step::receive && turns < kMostTurns; ++turns) {
      for (unsigned i = 0; i < 2; ++i) {
        if (steps[i] != Step::receive) continue;
        steps[i] = sessions[i]->shake_hands();
        sessions[i]->flush(sockets[i]);
        carry();
        if (steps[i] == Step::receive) sessions[i]->fetch(sockets[i]);
      }
      carry();
    }
  }
  /// Both are through.
  void shake_hands() {
    for (unsigned i = 0; i < 2; ++i) {
      shake_hands(i);
      REQUIRE_MESSAGE(steps[i] == Step::done, sessions[i]->failure().text);
    }
  }

  ssize_t send(unsigned from, const std::vector<std::byte>& data) {
    const std::array<iovec, 1> piece{{{const_cast<std::byte*>(data.data()), data.size()}}};
    return sessions[from]->send(sockets[from], piece);
  }
  ssize_t receive(unsigned at, std::vector<std::byte>& into) {
    const std::array<iovec, 1> piece{{{into.data(), into.size()}}};
    return sessions[at]->receive(sockets[at], piece);
  }

  static constexpr unsigned kMostTurns = 50;
  std::array<int, 2> sockets{};
  std::array<std::unique_ptr<tls::Session>, 2> sessions;
  std::array<Step, 2> steps{Step::receive, Step::receive};
  unsigned turns = 0;

 private:
  void carry_to(unsigned to) {
    std::array<std::byte, 65536> some;
    for (;;) {
      const ssize_t n = ::recv(inner_[1 - to], some.data(), some.size(), 0);
      if (n <= 0) break;
      const std::size_t through = std::min(static_cast<std::size_t>(n), left_[to]);
      if (through > 0) {
        REQUIRE(::send(inner_[to], some.data(), through, MSG_NOSIGNAL) ==
                static_cast<ssize_t>(through));
      }
      carried_[to] += through;
      if (left_[to] != kAll) left_[to] -= through;
    }
    if (left_[to] == 0) ::shutdown(inner_[to], SHUT_WR);
  }

  std::array<int, 2> inner_{};
  std::array<std::size_t, 2> left_{kAll, kAll};
  std::array<std::size_t, 2> carried_{};
};

}  // namespace rtrs::test
