// SPDX-License-Identifier: BSD-3-Clause
// The TCP binding: the suite that every transport passes, and what is its own.
#include <algorithm>
#include <built_annexes.hpp>
#include <vector>

#include "rdma/one_call.hpp"
#include "tests/conformance/regions_suite.hpp"
#include "tests/conformance/tls_fixture.hpp"

namespace rtrs::conformance::tcp_test {
namespace {

TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, TcpWithDigests, TcpWithoutDigests);
TEST_CASE_TEMPLATE_INVOKE(regions_conformance, TcpWithDigests, TcpWithoutDigests);
#if RNBDKIT_WITH_TLS
TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, TcpWithPsk, TcpWithCertificates);
TEST_CASE_TEMPLATE_INVOKE(regions_conformance, TcpWithPsk);
#endif

using tcp::Digests;
using tcp::FrameHeader;
using tcp::TcpQueuePair;

/// One queue pair, and a raw socket as its peer.
struct RawPeer {
  RawPeer() : RawPeer{connected_sockets()} {}
  ~RawPeer() { ::close(raw); }

  void say(ConstBytes bytes) {
    REQUIRE(::send(raw, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  Connection::Status listen() {
    if (awaits && queue_pair.begin_await(nullptr, true)) {
      queue_pair.await();
      return queue_pair.progress(recorder);
    }
    pollfd descriptor{queue_pair.descriptor(), POLLIN, 0};
    REQUIRE(poll(&descriptor, 1, 5000) == 1);
    return queue_pair.progress(recorder);
  }

  int raw;
  std::shared_ptr<tcp::RegionTable> regions = std::make_shared<tcp::RegionTable>();
  TcpQueuePair queue_pair;
  Recorder recorder;
  bool awaits = false;  ///< for what listen() is to hear

 private:
  explicit RawPeer(std::array<int, 2> sockets)
      : raw{sockets[0]}, queue_pair{tcp::Stream{sockets[1]}, Digests{true, true}, regions} {}
};

/// The bytes of one write with immediate, as a correct peer sends it.
std::vector<std::byte> good_frame(RemoteMemory to, ConstBytes payload,
                                  tcp::Opcode opcode = tcp::Opcode::write,
                                  std::uint8_t flags = tcp::kHasImmediate) {
  FrameHeader header;
  header.opcode = static_cast<std::uint8_t>(opcode);
  header.flags = flags;
  header.length = static_cast<std::uint32_t>(payload.size());
  header.immediate = 0x0028'1020;
  header.key = to.key;
  header.address = to.address;
  header.payload_crc = tcp::crc32c(payload);
  header.header_crc = tcp::crc32c(wire::bytes_of(header).first(28));
  const auto bytes = wire::bytes_of(header);
  std::vector<std::byte> frame(bytes.size() + payload.size());
  std::copy(payload.begin(), payload.end(), std::copy(bytes.begin(), bytes.end(), frame.begin()));
  return frame;
}

TEST_CASE("CRC32C has the published check value") {
  const char digits[] = "123456789";
  CHECK(tcp::crc32c(std::as_bytes(std::span{digits, 9})) == 0xE3069283);
}

TEST_CASE("bytes count as carried before their message is complete, in both directions") {
  RawPeer peer;
  const auto carried_after = [&](std::uint64_t bytes) {
    for (int tries = 0; peer.queue_pair.carried() < bytes && tries < 1000; ++tries) usleep(1000);
    return peer.queue_pair.carried();
  };
  const std::uint64_t before = peer.queue_pair.carried();
  std::vector<std::byte> memory(40'000);
  const auto frame = good_frame(peer.queue_pair.expose(0, memory), pattern(40'000));
  peer.say(ConstBytes{frame}.first(10'000));
  CHECK(carried_after(before + 10'000) == before + 10'000);
  const auto large = pattern(8U << 20);
  peer.queue_pair.write({}, large);  // more than the sockets hold, and nobody reads
  peer.queue_pair.flush();
  CHECK(carried_after(before + 20'000) >= before + 20'000);
  CHECK(peer.queue_pair.carried() < before + large.size());
}

/// A write of 40000 bytes whose first 30000 are to land elsewhere.
struct Detoured {
  Detoured() {
    peer.queue_pair.post_receives(1, 0);
    const auto target = peer.queue_pair.expose(0, memory);
    peer.recorder.next_detour = elsewhere;
    frame = good_frame(target, payload);
  }
  /// Sends up to this byte of the frame, and has it received.
  void say(std::size_t until) {
    peer.say(ConstBytes{frame}.subspan(said, until - said));
    said = until;
    while (peer.listen() == Connection::Status::more) {
    }
  }

  RawPeer peer;
  std::vector<std::byte> payload = pattern(40'000);
  std::vector<std::byte> memory = std::vector<std::byte>(40'000);
  std::vector<std::byte> elsewhere = std::vector<std::byte>(30'000);
  std::vector<std::byte> frame;
  std::size_t said = 0;
};

TEST_CASE("the first bytes of a large write land where the handler wants them") {
  const std::size_t header = sizeof(FrameHeader);
  for (const std::size_t cut :
       {header, header + 1, header + 29'999, header + 30'000, header + 30'001, header + 39'999}) {
    CAPTURE(cut);
    Detoured write;
    write.say(cut);
    write.say(write.frame.size());
    REQUIRE(write.peer.recorder.events.size() == 1);
    CHECK(equal(write.elsewhere, ConstBytes{write.payload}.first(30'000)));
    CHECK(write.memory == [&] {
      std::vector<std::byte> expected(30'000);
      expected.insert(expected.end(), write.payload.begin() + 30'000, write.payload.end());
      return expected;
    }());
  }
}

TEST_CASE("... and where they were sent, once the handler has taken its memory back") {
  const std::size_t header = sizeof(FrameHeader);
  for (const std::size_t cut : {header, header + 7, header + 20'000, header + 35'000}) {
    CAPTURE(cut);
    Detoured write;
    write.say(cut);
    write.peer.queue_pair.end_detour();
    std::ranges::fill(write.elsewhere, std::byte{0xEE});
    write.say(write.frame.size());
    REQUIRE(write.peer.recorder.events.size() == 1);
    CHECK(write.memory == write.payload);
    CHECK(std::ranges::count(write.elsewhere, std::byte{0xEE}) == 30'000);
  }
}

TEST_CASE("a frame that arrives byte by byte is understood") {
  RawPeer peer;
  SUBCASE("waiting for the descriptor") {}
  SUBCASE("awaiting") { peer.awaits = true; }
  std::vector<std::byte> memory(64);
  peer.queue_pair.post_receives(1, 0);
  const auto target = peer.queue_pair.expose(0, memory);
  const auto payload = pattern(64);
  for (const std::byte byte : good_frame(target, payload)) {
    CHECK(peer.recorder.events.empty());
    peer.say({&byte, 1});
    peer.listen();
  }
  CHECK(peer.recorder.events.size() == 1);
  CHECK(equal(memory, payload));
}

TEST_CASE("no flipped bit anywhere in a frame goes unnoticed") {
  const auto payload = pattern(48);
  const std::size_t bits = (sizeof(FrameHeader) + payload.size()) * 8;
  for (std::size_t bit = 0; bit < bits; ++bit) {
    RawPeer peer;
    std::vector<std::byte> memory(64);
    peer.queue_pair.post_receives(1, 64);
    auto frame = good_frame(peer.queue_pair.expose(0, memory), payload);
    frame[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    peer.say(frame);
    CAPTURE(bit);
    CHECK(peer.listen() == Connection::Status::broken);
    CHECK(peer.recorder.events.empty());
  }
}

TEST_CASE("what is awaited in vain may come later, and nothing is awaited inside a payload") {
  RawPeer peer;
  std::vector<std::byte> memory(64);
  peer.queue_pair.post_receives(2, 0);
  const auto payload = pattern(64);
  const auto frame = good_frame(peer.queue_pair.expose(0, memory), payload);
  REQUIRE(peer.queue_pair.begin_await(nullptr, true));
  peer.queue_pair.await();
  CHECK(peer.queue_pair.progress(peer.recorder) == Connection::Status::drained);
  peer.say(ConstBytes{frame}.first(sizeof(FrameHeader) + 20));
  peer.queue_pair.await();
  CHECK_FALSE(peer.queue_pair.begin_await(nullptr, true));  // what is there is progress()'s first
  peer.queue_pair.progress(peer.recorder);
  CHECK_FALSE(peer.queue_pair.begin_await(nullptr, true));  // its memory may be withdrawn any time
  peer.say(ConstBytes{frame}.subspan(sizeof(FrameHeader) + 20));
  peer.listen();
  CHECK(peer.recorder.events.size() == 1);
  CHECK(equal(memory, payload));
  CHECK(peer.queue_pair.begin_await(nullptr, true));
}

TEST_CASE("what is queued leaves with the wait, and what is posted meanwhile leaves behind it") {
  const auto call = make_uring_call();
  if (!call) {
    MESSAGE("no io_uring here, or none of Linux 6.1");
    return;
  }
  RawPeer peer;
  std::vector<std::byte> memory(64);
  std::vector<std::byte> data = pattern(64);
  peer.queue_pair.post_receives(1, 0);
  peer.say(good_frame(peer.queue_pair.expose(0, memory), pattern(64)));
  peer.queue_pair.write_with_immediate({1, 2}, data, {}, 3);
  REQUIRE(peer.queue_pair.begin_await(call.get(), true));
  for (std::uint32_t i = 0; i < 100; ++i) peer.queue_pair.write_with_immediate({}, {}, {}, i);
  peer.queue_pair.flush();
  CHECK(recv(peer.raw, memory.data(), 1, MSG_DONTWAIT | MSG_PEEK) < 0);
  CHECK(peer.queue_pair.await());
  std::vector<std::byte> sent(2 * sizeof(FrameHeader) + 64);
  CHECK(recv(peer.raw, sent.data(), sent.size(), MSG_DONTWAIT) ==
        ssize_t{sizeof(FrameHeader) + 64});
  CHECK(equal(ConstBytes{sent}.subspan(sizeof(FrameHeader), 64), data));
  peer.queue_pair.end_await();
  CHECK_FALSE(peer.queue_pair.wants_to_write());
  sent.resize(101 * sizeof(FrameHeader));
  CHECK(recv(peer.raw, sent.data(), sent.size(), MSG_DONTWAIT) ==
        ssize_t{100 * sizeof(FrameHeader)});
  CHECK(peer.queue_pair.progress(peer.recorder) == Connection::Status::drained);
  CHECK(peer.recorder.events.size() == 1);
}

TEST_CASE("frames that are too long for one call, or too many, leave before the wait") {
  const auto call = make_uring_call();
  const std::vector<std::byte> large(OneCall::kMost);
  for (OneCall* const with : {call.get(), static_cast<OneCall*>(nullptr)}) {
    for (const bool shared : {true, false}) {
      RawPeer peer;
      peer.queue_pair.write({1, 2}, large);
      REQUIRE(peer.queue_pair.begin_await(with, shared));
      CHECK_FALSE(peer.queue_pair.wants_to_write());
      peer.queue_pair.end_await();
      peer.queue_pair.write_with_immediate({}, {}, {}, 1);
      peer.queue_pair.write_with_immediate({}, {}, {}, 2);
      REQUIRE(peer.queue_pair.begin_await(with, shared));
      CHECK_FALSE(peer.queue_pair.wants_to_write());
      peer.queue_pair.end_await();
      // The peer reads no more.
      const std::vector<std::byte> endless(8 << 20);
      peer.queue_pair.write({1, 2}, endless);
      CHECK_FALSE(peer.queue_pair.begin_await(with, shared));
      CHECK(peer.queue_pair.wants_to_write());
    }
  }
}

TEST_CASE("a peer that closes between frames closed, one that closes inside a frame broke") {
  for (const bool awaits : {false, true}) {
    for (const std::size_t sent : {0, 10, 50}) {  // nothing, a part of the header, of the payload
      CAPTURE(awaits);
      CAPTURE(sent);
      RawPeer peer;
      peer.awaits = awaits;
      std::vector<std::byte> memory(64);
      const auto frame = good_frame(peer.queue_pair.expose(0, memory), pattern(64));
      if (sent > 0) peer.say(ConstBytes{frame}.first(sent));
      shutdown(peer.raw, SHUT_WR);
      auto status = peer.listen();
      if (status == Connection::Status::drained) status = peer.listen();
      CHECK(status == (sent == 0 ? Connection::Status::closed : Connection::Status::broken));
    }
  }
}

TEST_CASE("memory withdrawn in the middle of an arriving write is left alone from then on") {
  RawPeer peer;
  std::vector<std::byte> memory(64);
  peer.queue_pair.post_receives(1, 0);
  const auto payload = pattern(64);
  const auto frame = good_frame(peer.queue_pair.expose(0, memory), payload);
  peer.say(ConstBytes{frame}.first(sizeof(FrameHeader) + 20));
  peer.listen();
  peer.queue_pair.withdraw(0);
  std::fill(memory.begin(), memory.end(), std::byte{0xEE});
  peer.say(ConstBytes{frame}.subspan(sizeof(FrameHeader) + 20));
  CHECK(peer.listen() != Connection::Status::broken);
  CHECK(peer.recorder.events.size() == 1);
  CHECK(equal(memory, std::vector<std::byte>(64, std::byte{0xEE})));
}

TEST_CASE("only bytes that have landed in a window, from its start on, can be collected") {
  RawPeer peer;
  std::vector<std::byte> memory(64), other(64);
  peer.queue_pair.post_receives(8, 0);
  const auto target = peer.queue_pair.expose(0, memory);
  const auto elsewhere = peer.queue_pair.expose(1, other);
  const auto arrives = [&](RemoteMemory to, std::size_t size) {
    peer.say(good_frame(to, pattern(size)));
    peer.listen();
  };
  CHECK(peer.queue_pair.collect(0, 0));
  arrives(elsewhere, 64);
  CHECK_FALSE(peer.queue_pair.collect(0, 64));
  CHECK(peer.queue_pair.collect(1, 64));
  arrives({target.address + 32, target.key}, 32);
  CHECK_FALSE(peer.queue_pair.collect(0, 64));
  arrives(target, 16);
  CHECK(peer.queue_pair.collect(0, 16));
  CHECK_FALSE(peer.queue_pair.collect(0, 17));
  arrives({target.address + 16, target.key}, 48);
  CHECK(peer.queue_pair.collect(0, 64));

  peer.queue_pair.withdraw(0);
  peer.queue_pair.withdraw(1);
  peer.queue_pair.expose(0, memory);
  CHECK_FALSE(peer.queue_pair.collect(0, 1));
  arrives(elsewhere, 64);  // dropped
  peer.queue_pair.expose(1, other);
  CHECK_FALSE(peer.queue_pair.collect(1, 1));
}

TEST_CASE("a peer that sends more than was asked for breaks only its own connection") {
  RawPeer peer;
  FrameHeader header;
  header.opcode = static_cast<std::uint8_t>(tcp::Opcode::write);
  header.flags = tcp::kHasImmediate;
  header.header_crc = tcp::crc32c(wire::bytes_of(header).first(28));
  peer.queue_pair.post_receives(1, 0);
  peer.say(wire::bytes_of(header));
  peer.say(wire::bytes_of(header));
  auto status = peer.listen();
  if (status == Connection::Status::drained) status = peer.listen();
  CHECK(status == Connection::Status::broken);
  CHECK(peer.recorder.events.size() == 1);
}

std::vector<std::byte> read_frame(RemoteMemory from, std::uint32_t length) {
  tcp::ReadRequest request;
  request.length = length;
  return good_frame(from, wire::bytes_of(request), tcp::Opcode::read, 0);
}

TEST_CASE("a forged key or generation of a region breaks its own connection, and no byte moves") {
  constexpr std::uint64_t kOneExposure = std::uint64_t{1} << 21;
  const auto is_refused = [](auto forge, bool reads) {
    RawPeer peer;
    std::vector<std::byte> memory(4096);
    RemoteMemory where = *peer.regions->expose(memory, kRegionRead | kRegionWrite);
    forge(where);
    peer.say(reads ? read_frame(where, 64) : good_frame(where, pattern(64), tcp::Opcode::write, 0));
    const bool broken = peer.listen() == Connection::Status::broken;
    return broken && peer.queue_pair.failure().starts_with("the peer ") &&
           equal(memory, std::vector<std::byte>(4096));
  };
  for (const bool reads : {false, true}) {
    CHECK_FALSE(is_refused([](RemoteMemory&) {}, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.address += kOneExposure; }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.address -= kOneExposure; }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.address |= ~(kOneExposure - 1); }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.key += 1U << 8; }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.key += 1; }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.key = 0xFFFF'FF00; }, reads));
    CHECK(is_refused([](RemoteMemory& m) { m.key &= 0x7FFF'FFFF; }, reads));
  }
}

TEST_CASE("a region that ends in the middle of a write takes the rest, and the connection, away") {
  RawPeer peer;
  std::vector<std::byte> memory(4096);
  const RemoteMemory where = *peer.regions->expose(memory, kRegionWrite);
  const auto frame = good_frame(where, pattern(4096, 3), tcp::Opcode::write, 0);
  peer.say(ConstBytes{frame}.first(2000));
  CHECK(peer.listen() == Connection::Status::drained);
  bool dead = false;
  peer.regions->retire(where, [&] { dead = true; });
  REQUIRE(dead);
  std::ranges::fill(memory, std::byte{7});
  peer.say(ConstBytes{frame}.subspan(2000));
  CHECK(peer.listen() == Connection::Status::broken);
  CHECK(equal(memory, std::vector<std::byte>(4096, std::byte{7})));
}

TEST_CASE("a peer that reads more at once than it may breaks only its own connection") {
  RawPeer peer;
  std::vector<std::byte> memory(Regions::kMaxRegion);
  const RemoteMemory where = *peer.regions->expose(memory, kRegionRead);
  auto status = Connection::Status::drained;
  // The socket takes some answers, which nobody reads.
  for (int i = 0; i < 100 && status != Connection::Status::broken; ++i) {
    peer.say(read_frame(where, Regions::kMaxRegion));
    status = peer.listen();
  }
  CHECK(status == Connection::Status::broken);
  CHECK(peer.queue_pair.failure() == "the peer reads more at once than it may");
}

TEST_CASE("an answer to a read that was not asked for breaks the connection") {
  RawPeer peer;
  std::vector<std::byte> memory(64);
  SUBCASE("there is none") {}
  SUBCASE("of another token") { peer.queue_pair.read({}, memory); }
  peer.say(good_frame({}, pattern(64), tcp::Opcode::read_data));
  CHECK(peer.listen() == Connection::Status::broken);
  CHECK(equal(memory, std::vector<std::byte>(64)));
  CHECK(peer.recorder.done.empty());
}

TEST_CASE("a peer cannot read on a connection that gives no regions") {
  const auto sockets = connected_sockets();
  TcpQueuePair queue_pair{tcp::Stream{sockets[1]}, Digests{true, true}};
  Recorder recorder;
  const auto frame = read_frame({}, 0);
  REQUIRE(::send(sockets[0], frame.data(), frame.size(), MSG_NOSIGNAL) > 0);
  pollfd descriptor{queue_pair.descriptor(), POLLIN, 0};
  REQUIRE(poll(&descriptor, 1, 60'000) == 1);
  CHECK(queue_pair.progress(recorder) == Connection::Status::broken);
  CHECK(queue_pair.failure() == "the peer reads memory, and was given none");
  ::close(sockets[0]);
}

TEST_CASE("a frame header is refused for each thing that can be wrong with it") {
  const auto judge = [](auto change) {
    FrameHeader header;
    header.opcode = static_cast<std::uint8_t>(tcp::Opcode::write);
    change(header);
    header.header_crc = tcp::crc32c(wire::bytes_of(header).first(28));
    return tcp::decode_frame_header(wire::bytes_of(header), true);
  };
  using wire::DecodeError;
  CHECK(judge([](FrameHeader&) {}).has_value());
  CHECK(judge([](FrameHeader& h) { h.opcode = 0; }).error() == DecodeError::bad_type);
  CHECK(judge([](FrameHeader& h) { h.opcode = 6; }).error() == DecodeError::bad_type);
  CHECK(judge([](FrameHeader& h) { h.opcode = 4; }).error() == DecodeError::bad_value);
  CHECK(judge([](FrameHeader& h) {
          h.opcode = 4;
          h.length = 8;
          h.flags = tcp::kHasImmediate;
        }).error() == DecodeError::bad_value);
  CHECK(judge([](FrameHeader& h) { h.opcode = 5; }).error() == DecodeError::bad_value);
  CHECK(judge([](FrameHeader& h) { h.length = (1U << 28) + 1; }).error() ==
        DecodeError::bad_length);
  CHECK(judge([](FrameHeader& h) {
          h.opcode = 3;
          h.length = 1;
        }).error() == DecodeError::bad_value);
  CHECK(tcp::decode_frame_header(std::vector<std::byte>(31), false).error() ==
        DecodeError::too_short);
}

}  // namespace
}  // namespace rtrs::conformance::tcp_test
