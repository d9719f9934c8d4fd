// SPDX-License-Identifier: BSD-3-Clause
// Records of sizes and kinds that our own client never sends, and new keys in the midst of them.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rdma/transport/tls/session.hpp"
#include "tests/unit/transport/tls_keys.hpp"
#include "tests/unit/transport/tls_raw_peer.hpp"

namespace rtrs::test::tls_record_test {
namespace {

using Bytes = std::vector<std::byte>;
using Step = tls::Session::Step;

/// A server's session, and a client that has the key and any manners.
class Bench {
 public:
  Bench() {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets_.data()) ==
            0);
    const KeyDirectory keys;
    auto loaded = tls::Credentials::load(keys.psk("host1", hex_key()), tls::Role::server);
    REQUIRE(loaded.has_value());
    session =
        *tls::Session::create({.credentials = *loaded, .server_name = "", .protocol = "rtrs/1"});
    const Bytes secret(32, std::byte{0x77});
    peer = std::make_unique<RawTlsPeer>(sockets_[0], "host1", secret);
    shake_hands();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    peer.reset();
    close(sockets_[0]);
    close(sockets_[1]);
  }

  void put(const Bytes& raw) {
    REQUIRE(::send(sockets_[0], raw.data(), raw.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(raw.size()));
  }
  /// Receives from the session; the last answer is in `last`.
  Bytes take() {
    Bytes all, buffer(40'000);
    const std::array<iovec, 1> piece{{{buffer.data(), buffer.size()}}};
    while ((last = session->receive(sockets_[1], piece)) > 0) {
      all.insert(all.end(), buffer.begin(), buffer.begin() + last);
    }
    session->flush(sockets_[1]);
    return all;
  }
  ssize_t receive(std::span<const iovec> into) { return session->receive(sockets_[1], into); }
  void say(const Bytes& data) {
    const std::array<iovec, 1> piece{{{const_cast<std::byte*>(data.data()), data.size()}}};
    REQUIRE(session->send(sockets_[1], piece) == static_cast<ssize_t>(data.size()));
  }

  std::unique_ptr<tls::Session> session;
  std::unique_ptr<RawTlsPeer> peer;
  ssize_t last = 0;

 private:
  void shake_hands() {
    bool through = false;
    Step step = Step::receive;
    for (unsigned turn = 0; turn < 50 && (!through || step == Step::receive); ++turn) {
      if (!through) through = peer->shake_hands();
      session->fetch(sockets_[1]);
      if (step == Step::receive) step = session->shake_hands();
      session->flush(sockets_[1]);
    }
    REQUIRE(through);
    REQUIRE(step == Step::done);
    REQUIRE(session->identity().name == "host1");
  }

  std::array<int, 2> sockets_{};
};

Bytes bytes_of(std::size_t size, unsigned seed = 1) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + i * 7);
  return bytes;
}
void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

TEST_CASE("records of one byte are as good as others") {
  Bench bench;
  const Bytes data = bytes_of(3000);
  Bytes raw;
  for (const std::byte byte : data) append(raw, bench.peer->record(RawTlsPeer::kData, {{byte}}));
  bench.put(raw);
  CHECK(bench.take() == data);
  CHECK(bench.last == -EAGAIN);
}

TEST_CASE("the largest records arrive, with and without padding, and cut anywhere") {
  Bench bench;
  const Bytes large = bytes_of(16384), padded = bytes_of(16000, 3);
  Bytes raw = bench.peer->record(RawTlsPeer::kData, large);
  append(raw, bench.peer->record(RawTlsPeer::kData, padded, 384));
  Bytes got;
  for (std::size_t at = 0; at < raw.size(); at += 1001) {
    const auto end = std::min(raw.size(), at + 1001);
    bench.put(Bytes(raw.begin() + static_cast<std::ptrdiff_t>(at),
                    raw.begin() + static_cast<std::ptrdiff_t>(end)));
    append(got, bench.take());
    CHECK(bench.last == -EAGAIN);
  }
  Bytes expected = large;
  append(expected, padded);
  CHECK(got == expected);
}

struct Bad {
  const char* title;
  Bytes (*raw)(RawTlsPeer&);
};

const Bad kBad[] = {
    {"16,385 bytes of data",
     [](RawTlsPeer& peer) { return peer.record(RawTlsPeer::kData, bytes_of(16385)); }},
    {"16,384 bytes of data and more padding than fits",
     [](RawTlsPeer& peer) { return peer.record(RawTlsPeer::kData, bytes_of(16384), 1000); }},
    {"zeros only, so it has no type", [](RawTlsPeer& peer) { return peer.seal(Bytes(100)); }},
    {"a type that TLS does not have",
     [](RawTlsPeer& peer) { return peer.record(99, bytes_of(10)); }},
    {"a ClientHello in the midst",
     [](RawTlsPeer& peer) {
       Bytes hello(40);
       hello[0] = std::byte{1};
       hello[3] = std::byte{36};
       return peer.record(RawTlsPeer::kHandshake, hello);
     }},
    {"a key update of an unknown kind",
     [](RawTlsPeer& peer) {
       return peer.record(RawTlsPeer::kHandshake, Bytes{std::byte{24}, std::byte{0}, std::byte{0},
                                                        std::byte{1}, std::byte{7}});
     }},
    {"a bit that is another one",
     [](RawTlsPeer& peer) {
       Bytes raw = peer.record(RawTlsPeer::kData, bytes_of(500));
       raw[300] ^= std::byte{1};
       return raw;
     }},
    {"a record that came before",
     [](RawTlsPeer& peer) {
       Bytes raw = peer.record(RawTlsPeer::kData, bytes_of(5));
       append(raw, raw);
       return raw;
     }},
    {"a record that was left out",
     [](RawTlsPeer& peer) {
       peer.record(RawTlsPeer::kData, bytes_of(5));
       return peer.record(RawTlsPeer::kData, bytes_of(5));
     }},
    {"no TLS at all", [](RawTlsPeer&) { return bytes_of(500); }},
};

TEST_CASE(
    "a record that may not be breaks the connection, with a sentence, and nothing of it is read") {
  for (const Bad& bad : kBad) {
    CAPTURE(std::string{bad.title});
    Bench bench;
    bench.put(bench.peer->record(RawTlsPeer::kData, bytes_of(5)));
    CHECK(bench.take() == bytes_of(5));
    bench.put(bad.raw(*bench.peer));
    const Bytes more = bench.take();
    // Of a record that is sent twice the first one is good.
    CHECK((more.empty() || more == bytes_of(5)));
    CHECK(bench.last == -EBADMSG);
    CHECK(bench.session->failure().text.find("a TLS record is damaged, or no TLS") == 0);
    bench.put(bytes_of(100));
    CHECK(bench.take().empty());
    CHECK(bench.last < 0);
    CHECK(bench.last != -EAGAIN);
  }
}

TEST_CASE("a handshake message that announces 16 MiB is not kept until it is there") {
  Bench bench;
  Bytes part = bytes_of(16000);
  part[0] = std::byte{24};
  part[1] = part[2] = part[3] = std::byte{255};
  unsigned sent = 0;
  bench.last = -EAGAIN;
  while (bench.last == -EAGAIN && sent < 1'000'000) {
    bench.put(bench.peer->record(RawTlsPeer::kHandshake, part));
    sent += 16000;
    CHECK(bench.take().empty());
  }
  CHECK(bench.last == -EBADMSG);
  CHECK(sent < 600'000);
}

Bytes empty_records(RawTlsPeer& peer, unsigned count) {
  Bytes raw;
  for (unsigned i = 0; i < count; ++i) append(raw, peer.record(RawTlsPeer::kData, Bytes{}));
  return raw;
}

TEST_CASE("empty records hide nothing of what is behind them, and a flood of them is sent away") {
  Bench bench;
  for (unsigned turn = 0; turn < 5; ++turn) {
    Bytes raw = empty_records(*bench.peer, 30);
    append(raw, bench.peer->record(RawTlsPeer::kData, bytes_of(9)));
    bench.put(raw);
    CHECK(bench.take() == bytes_of(9));
    CHECK(bench.last == -EAGAIN);
  }
  bench.put(empty_records(*bench.peer, 100));
  CHECK(bench.take().empty());
  CHECK(bench.last == -EBADMSG);
  CHECK(bench.session->failure().text.find("records without data") != std::string::npos);
}

TEST_CASE("warnings of TLS 1.2 hide nothing of what is behind them, and a flood is sent away") {
  const KeyDirectory directory;
  TlsKeys keys = TestAuthority{}.fill(directory);
  keys.tls12 = true;
  auto loaded = tls::Credentials::load(keys, tls::Role::server);
  REQUIRE(loaded.has_value());
  auto session = *tls::Session::create({.credentials = *loaded, .server_name = "", .protocol = ""});
  std::array<int, 2> sockets{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) == 0);
  {
    OldTlsPeer client{sockets[0], directory.path()};
    Step step = Step::receive;
    bool through = false;
    for (unsigned turn = 0; turn < 50 && (!through || step == Step::receive); ++turn) {
      if (!through) through = client.shake_hands();
      session->fetch(sockets[1]);
      if (step == Step::receive) step = session->shake_hands();
      session->flush(sockets[1]);
    }
    REQUIRE(through);
    REQUIRE(step == Step::done);
    CHECK(session->identity().cipher == "tls12/aes128gcm");
    Bytes room(100);
    const std::array<iovec, 1> piece{{{room.data(), room.size()}}};
    for (unsigned turn = 0; turn < 5; ++turn) {
      client.warn(30);
      client.send(bytes_of(9));
      CHECK(session->receive(sockets[1], piece) == 9);
    }
    client.warn(100);
    CHECK(session->receive(sockets[1], piece) == -EBADMSG);
    CHECK(session->failure().text.find("records without data") != std::string::npos);
  }
  close(sockets[0]);
  close(sockets[1]);
}

// ---- New keys ----------------------------------------------------------------------------------

TEST_CASE("new keys at any moment, of one end or of both, change nothing of the data") {
  Bench bench;
  std::mt19937 random{7};
  for (unsigned turn = 0; turn < 7; ++turn) {
    const Bytes up = bytes_of(1 + random() % 30'000, turn), down = bytes_of(1 + random() % 9000);
    const std::string before = bench.peer->key(false), theirs = bench.peer->key(true);
    const std::size_t middle = random() % up.size();
    for (std::size_t at = 0; at < up.size(); at += 16384) {
      if (at <= middle && middle < at + 16384) REQUIRE(bench.peer->update_key(turn % 2 == 1));
      const auto end = std::min(up.size(), at + 16384);
      bench.peer->send(std::span{up}.subspan(at, end - at));
    }
    CHECK(bench.take() == up);
    bench.say(down);
    Bytes got(10'000);
    const ssize_t n = bench.peer->receive(got);
    REQUIRE(n == static_cast<ssize_t>(down.size()));
    got.resize(static_cast<std::size_t>(n));
    CHECK(got == down);
    CHECK(bench.peer->key(false) != before);
    CHECK((bench.peer->key(true) != theirs) == (turn % 2 == 1));
  }
}

TEST_CASE("a peer that does nothing but make new keys is sent away") {
  Bench bench;
  bench.last = -EAGAIN;
  unsigned updates = 0;
  // GnuTLS counts those of a second; on a slow machine some more are needed.
  while (bench.last == -EAGAIN && updates < 100'000) {
    if (!bench.peer->update_key(false)) break;
    ++updates;
    bench.take();
  }
  CHECK(bench.last == -EBADMSG);
  CHECK(updates < 100'000);
}

/// For minutes, so it runs only when it is named: --no-skip.
TEST_CASE("2^24 records in each direction: the library makes new keys, and no byte is lost" *
          doctest::skip()) {
  constexpr unsigned kRecords = (1U << 24) + 1000;
  Bench bench;
  const std::string up = bench.peer->key(false), down = bench.peer->key(true);
  Bytes byte(1), got(1);
  const std::array<iovec, 1> piece{{{got.data(), 1}}};
  unsigned wrong = 0;
  for (unsigned i = 0; i < kRecords && wrong == 0; ++i) {
    byte[0] = static_cast<std::byte>(i % 251);
    bench.peer->send(byte);
    wrong += bench.receive(piece) != 1 || got != byte;
    bench.say(byte);
    wrong += bench.peer->receive(got) != 1 || got != byte;
  }
  CHECK(wrong == 0);
  CHECK(bench.peer->key(false) != up);
  CHECK(bench.peer->key(true) != down);
}

}  // namespace
}  // namespace rtrs::test::tls_record_test
