// SPDX-License-Identifier: BSD-3-Clause
// Connections that end after each byte of a handshake, and of the records behind it.
#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/transport/tls_wire.hpp"

namespace rtrs::test::tls_cut_test {
namespace {

using Step = tls::Session::Step;
using Both = std::array<std::shared_ptr<const tls::Credentials>, 2>;

Both credentials_of(const TlsKeys& keys) {
  Both both;
  for (unsigned i = 0; i < 2; ++i) {
    auto loaded = tls::Credentials::load(keys, i == 0 ? tls::Role::client : tls::Role::server);
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error()));
    both[i] = *std::move(loaded);
  }
  return both;
}

/// The stream to this end ends after so many bytes. False: that was behind the handshake.
bool is_cut_in_handshake(const Both& both, unsigned victim, std::size_t bytes) {
  TlsWire wire{both};
  wire.cut_after(victim, bytes);
  wire.shake_hands(victim);
  CHECK(wire.turns < TlsWire::kMostTurns);
  if (wire.steps[victim] == Step::done) return false;
  const Failure& why = wire.sessions[victim]->failure();
  CHECK(wire.steps[victim] == Step::failed);
  CHECK(why.error == ECONNRESET);
  CHECK(why.text == "the peer closed the connection during the TLS handshake");
  CHECK(wire.sessions[victim]->identity().name.empty());
  return true;
}

/// Returns how many bytes the handshake has that arrive at this end.
std::size_t cut_everywhere(const Both& both, unsigned victim) {
  std::size_t bytes = 0;
  while (bytes < 10'000 && is_cut_in_handshake(both, victim, bytes)) ++bytes;
  return bytes;
}

TEST_CASE("a handshake that ends after any byte proves nobody, and each end says that it was cut") {
  const KeyDirectory keys;
  Both both;
  std::size_t least = 0;
  SUBCASE("shared keys") {
    both = credentials_of(keys.psk("host1", hex_key()));
    least = 100;
  }
  SUBCASE("certificates") {
    both = credentials_of(TestAuthority{}.fill(keys));
    least = 500;
  }
  for (unsigned victim = 0; victim < 2; ++victim) {
    CAPTURE(victim);
    const std::size_t bytes = cut_everywhere(both, victim);
    CHECK(bytes > least);
    CHECK(bytes < 10'000);
  }
}

const std::vector<std::size_t> kRecords{100, 1, 300};  ///< bytes of plaintext

std::vector<std::byte> record_of(std::size_t size) {
  return std::vector<std::byte>(size, static_cast<std::byte>(size));
}
void send_all(TlsWire& wire, unsigned from) {
  for (const std::size_t size : kRecords) {
    REQUIRE(wire.send(from, record_of(size)) == static_cast<ssize_t>(size));
  }
  wire.carry();
}
/// Bytes received; what came instead of more is in `last`.
std::size_t receive_all(TlsWire& wire, unsigned at, ssize_t& last) {
  std::vector<std::byte> buffer(1000);
  std::size_t received = 0;
  for (unsigned turn = 0; turn < 20; ++turn) {
    last = wire.receive(at, buffer);
    if (last == -EAGAIN) last = wire.receive(at, buffer);  // the end is an event of its own
    if (last <= 0) break;
    received += static_cast<std::size_t>(last);
  }
  return received;
}
bool is_whole(std::size_t received) {
  std::size_t sum = 0;
  for (const std::size_t size : kRecords) {
    if (received == sum) return true;
    sum += size;
  }
  return received == sum;
}

TEST_CASE("a stream that ends after any byte of its records gives the whole ones, and an error") {
  const KeyDirectory keys;
  const Both both = credentials_of(keys.psk("host1", hex_key()));
  for (unsigned victim = 0; victim < 2; ++victim) {
    std::size_t bytes = 0;
    for (bool all = false; !all && bytes < 1000; ++bytes) {
      CAPTURE(victim);
      CAPTURE(bytes);
      TlsWire wire{both};
      wire.shake_hands();
      wire.cut_after(victim, bytes);
      send_all(wire, 1 - victim);
      ssize_t last = 0;
      const std::size_t received = receive_all(wire, victim, last);
      CHECK(is_whole(received));
      CHECK(last == -ECONNRESET);  // an end in order has an end of TLS
      all = received == 401;
    }
    CHECK(bytes > 401);
    CHECK(bytes < 1000);
  }
}

TEST_CASE("an end of TLS is told from a stream that was cut, also when it is cut in its midst") {
  const KeyDirectory keys;
  const Both both = credentials_of(keys.psk("host1", hex_key()));
  constexpr std::size_t kEnd = 24;  ///< bytes: header, alert, type, tag
  for (std::size_t bytes = 0; bytes <= kEnd; ++bytes) {
    CAPTURE(bytes);
    TlsWire wire{both};
    wire.shake_hands();
    wire.cut_after(1, bytes);
    wire.sessions[0]->end(wire.sockets[0]);
    wire.carry();
    ssize_t last = 1;
    CHECK(receive_all(wire, 1, last) == 0);
    CHECK(last == (bytes == kEnd ? 0 : -ECONNRESET));
  }
}

}  // namespace
}  // namespace rtrs::test::tls_cut_test
