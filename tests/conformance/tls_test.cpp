// SPDX-License-Identifier: BSD-3-Clause
// TLS on a TCP queue pair: ends are told from cuts, and damage is noticed.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "tests/conformance/tls_fixture.hpp"

namespace rtrs::conformance::tls_test {
namespace {

using Status = Connection::Status;

/// Two queue pairs within TLS, and the bare socket of the left one.
struct Pair {
  Pair() : Pair{made()} {}

  /// The status of the right one after all that arrives.
  Status hear() {
    Status status = Status::drained;
    while (status == Status::drained || status == Status::more) {
      pollfd descriptor{right.descriptor(), POLLIN, 0};
      if (poll(&descriptor, 1, 5000) != 1) return status;
      status = right.progress(recorder);
    }
    return status;
  }

  int raw;
  tcp::TcpQueuePair left;
  tcp::TcpQueuePair right;
  Recorder recorder;

 private:
  struct Made {
    int raw;
    std::array<tcp::Stream, 2> streams;
  };
  static Made made() {
    const test::KeyDirectory keys;
    TlsPair pair{keys.psk("host1", test::hex_key())};
    pair.shake_hands();
    return {pair.sockets[0], pair.streams()};
  }
  explicit Pair(Made made)
      : raw{made.raw},
        left{std::move(made.streams[0]), tcp::Digests{false, false}},
        right{std::move(made.streams[1]), tcp::Digests{false, false}} {}
};

TEST_CASE("within TLS an end in order closes the connection, and a cut breaks it") {
  Pair pair;
  pair.right.post_receives(1, 64);
  pair.left.send(pattern(64));
  pair.left.flush();
  SUBCASE("in order") {
    pair.left.close();
    CHECK(pair.hear() == Status::closed);
  }
  SUBCASE("cut") {
    shutdown(pair.raw, SHUT_WR);
    CHECK(pair.hear() == Status::broken);
    CHECK(pair.right.failure().find("cut without TLS's end") != std::string::npos);
  }
  CHECK(pair.recorder.events.size() == 1);  // what came before arrived
}

TEST_CASE("within TLS nothing that somebody else has put between is acted upon") {
  std::vector<std::byte> bytes;
  SUBCASE("a record that nobody has sealed") {
    bytes.resize(5 + 100);
    bytes[0] = std::byte{0x17};
    bytes[1] = bytes[2] = std::byte{3};
    bytes[4] = std::byte{100};
  }
  SUBCASE("a record that is too large") {
    bytes.resize(5 + 64);
    bytes[0] = std::byte{0x17};
    bytes[1] = bytes[2] = std::byte{3};
    bytes[3] = bytes[4] = std::byte{0xFF};
  }
  SUBCASE("a frame in clear") {
    const tcp::FrameHeader header{.opcode = 1};
    const auto frame = wire::bytes_of(header);
    bytes.assign(frame.begin(), frame.end());
  }
  Pair pair;
  pair.right.post_receives(1, 64);
  REQUIRE(::send(pair.raw, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  CHECK(pair.hear() == Status::broken);
  CHECK(pair.recorder.events.empty());
}

TEST_CASE("what a full socket does not take arrives later, and is not lost at the end") {
  Pair pair;
  std::vector<std::byte> memory(8 << 20);
  const auto data = pattern(1 << 20);
  pair.right.post_receives(8, 0);
  const RemoteMemory target = pair.right.expose(0, memory);
  for (std::uint32_t i = 0; i < 8; ++i) {
    pair.left.write_with_immediate({target.address + (i << 20), target.key}, data, {}, i + 1);
  }
  pair.left.flush();
  REQUIRE(pair.left.wants_to_write());
  while (pair.recorder.events.size() < 8) {
    REQUIRE(pair.right.progress(pair.recorder) != Status::broken);
    pair.left.flush();
  }
  CHECK_FALSE(pair.left.wants_to_write());
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(equal(ConstBytes{memory}.subspan(i << 20, 1 << 20), data));
  }
}

}  // namespace
}  // namespace rtrs::conformance::tls_test
