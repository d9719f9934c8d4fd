// SPDX-License-Identifier: BSD-3-Clause
// Sessions that are up, and then break the rules of RTRS: the path closes, the log says why.
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/victim.hpp"

namespace rtrs::hostile::request_test {
namespace {

using wire::bytes_of;

/// A session up to its death: `attack` must close all of its path with this complaint.
template <class Attack>
void dies(const std::string& complaint, Attack attack) {
  auto& victim = Victim::get();
  RawSession session;
  victim.forget_log();
  attack(session);
  CHECK(session.is_closed());
  victim.complains(complaint);
}

/// A chunk whose header is at `offset` and stands for itself.
template <class... Parts>
void header_at(RawSession& session, std::uint32_t offset, const Parts&... parts) {
  session.request(0, offset, joined(parts...), offset);
}

wire::ReadHeader read_header(std::uint16_t user_length, std::uint16_t descriptors,
                             std::uint16_t flags = 0) {
  return {.user_length = user_length, .flags = flags, .descriptor_count = descriptors};
}

TEST_CASE("memory that is not the client's to write breaks its path") {
  const std::vector<std::byte> bytes(64);
  const char* broke = "a key or an address that it may not use";
  SUBCASE("a wrong key") {
    dies(broke, [&](RawSession& session) {
      ++session.chunks[0].key;
      session.request(0, 0, bytes, 0);
    });
    dies(broke, [&](RawSession& session) {
      session.chunks[0].key = 0xFFFFFFFF;
      session.request(0, 0, bytes, 0);
    });
  }
  SUBCASE("in front of the chunks, across their end and behind it") {
    for (const std::int64_t distance : {-64, -1}) {
      dies(broke, [&](RawSession& session) {
        session.chunks[0].address += static_cast<std::uint64_t>(distance);
        session.request(0, 0, bytes, 0);
      });
    }
    for (const std::uint32_t distance : {0, 32}) {
      dies(broke, [&](RawSession& session) {
        RemoteMemory to = session.chunk(session.accepted.queue_depth - 1U);
        to.address += session.chunk_size() - distance;
        session.cid(1).post({.payload = bytes, .to = to});
      });
    }
  }
  SUBCASE("at the end of all addresses") {
    dies(broke, [&](RawSession& session) {
      session.cid(1).post({.payload = bytes, .to = {~std::uint64_t{31}, session.chunks[0].key}});
    });
  }
  SUBCASE("without an immediate, and on connection 0") {
    dies(broke, [&](RawSession& session) {
      session.cid(0).post({.opcode = IBV_WR_RDMA_WRITE, .payload = bytes, .to = {0, 0}});
    });
  }
  SUBCASE("with the key of another session") {
    RawSession other;
    dies(broke, [&](RawSession& session) {
      session.chunks = other.chunks;
      session.request(0, 0, bytes, 0);
    });
    const auto device = other.open("disk0", rnbd::wire::AccessMode::read_only);
    CHECK(other.read(bytes_of(io(device, 0, 0, 512)), 512) == 0);
  }
}

TEST_CASE("an invalidation of the server's key breaks the path") {
  dies("a key or an address that it may not use", [](RawSession& session) {
    session.cid(1).post({.opcode = IBV_WR_SEND_WITH_INV, .immediate = session.chunks[0].key});
  });
}

TEST_CASE("messages after the info exchange close the path") {
  const std::vector<std::byte> bytes(64);
  for (const std::size_t cid : {0, 1}) {
    dies("longer than", [&](RawSession& session) {
      session.cid(cid).post({.opcode = IBV_WR_SEND, .payload = bytes});
    });
    dies("longer than", [&](RawSession& session) {
      session.cid(cid).post({.opcode = IBV_WR_SEND_WITH_IMM, .payload = bytes, .immediate = 7});
    });
    dies("an unexpected message",
         [&](RawSession& session) { session.cid(cid).post({.opcode = IBV_WR_SEND}); });
    dies("an unexpected message", [&](RawSession& session) {
      session.cid(cid).post({.opcode = IBV_WR_SEND_WITH_IMM, .immediate = wire::kHeartbeat});
    });
  }
}

TEST_CASE("immediates for chunks and offsets that do not exist close the path") {
  // The lab's server has 48 chunks, so that not every number is one.
  dies("a request for a chunk that does not exist", [](RawSession& session) {
    session.cid(1).post({.immediate = session.immediate(session.accepted.queue_depth, 0)});
  });
  dies("a request for a chunk that does not exist", [](RawSession& session) {
    session.cid(1).post({.immediate = wire::kImmediatePayloadMask});
  });
  dies("too short", [](RawSession& session) {
    session.cid(1).post({.immediate = session.immediate(0, session.chunk_size())});
  });
  dies("too short", [](RawSession& session) {
    const auto most = (1U << wire::offset_bits(session.accepted.queue_depth)) - 1;
    session.cid(1).post({.immediate = session.immediate(0, most)});
  });
}

TEST_CASE("headers that would end beyond their chunk close the path") {
  for (const std::uint32_t room : {1, 2, 3}) {
    dies("too short", [&](RawSession& session) {
      const auto at = session.chunk_size() - room;
      session.request(0, at, ConstBytes{joined(wire::WriteHeader{})}.first(room), at);
    });
  }
  // Of the last chunk, behind which the server's memory ends.
  dies("too short", [](RawSession& session) {
    const auto at = session.chunk_size() - 4;
    session.request(session.accepted.queue_depth - 1U, at,
                    ConstBytes{joined(read_header(0, 1))}.first(4), at);
  });
  dies("too short", [](RawSession& session) {
    const auto at = session.chunk_size() - 8;
    session.request(session.accepted.queue_depth - 1U, at, joined(read_header(0, 1)), at);
  });
  dies("too short", [](RawSession& session) {
    const auto at = session.chunk_size() - 23;
    session.request(0, at, joined(read_header(0, 1), std::array<std::byte, 15>{}), at);
  });
}

TEST_CASE("headers of unknown types close the path") {
  for (const std::uint16_t type : {0, 1, 4, 5, 77, 65535}) {
    dies("unexpected message type", [&](RawSession& session) {
      header_at(session, 64, wire::WriteHeader{.type = type, .user_length = 32});
    });
  }
}

TEST_CASE("user messages that are longer than what is there, or than any, close the path") {
  for (const std::uint16_t length : {65, 288, 65535}) {
    dies("inconsistent length", [&](RawSession& session) {
      header_at(session, 64, wire::WriteHeader{.user_length = length});
    });
  }
  dies("inconsistent length",
       [](RawSession& session) { header_at(session, 64, read_header(65, 0)); });
  dies("a user message longer than any we know", [](RawSession& session) {
    header_at(session, 4096, wire::WriteHeader{.user_length = 289});
  });
  dies("a request larger than max_io_size", [](RawSession& session) {
    header_at(session, session.accepted.max_io_size + 4, wire::WriteHeader{.user_length = 0});
  });
}

TEST_CASE("descriptors that contradict their request close the path") {
  const auto descriptor = [](RawSession& session, std::uint32_t length) {
    const RemoteMemory here = session.cid(1).exposed();
    return wire::Descriptor{here.address, here.key, length};
  };
  // Data of 32 bytes, then a message of 32.
  for (const std::uint32_t length : {0U, 31U, 33U, 4096U, 0xFFFFFFFFU}) {
    dies("inconsistent length", [&](RawSession& session) {
      header_at(session, 64, read_header(32, 1), descriptor(session, length));
    });
  }
  dies("a request larger than max_io_size", [&](RawSession& session) {
    const std::uint32_t length = session.accepted.max_io_size + 4;
    header_at(session, length + 32, read_header(32, 1), descriptor(session, length));
  });
  for (const std::uint16_t count : {2, 3, 65535}) {
    dies("impossible count", [&](RawSession& session) {
      header_at(session, 64, read_header(32, count), descriptor(session, 32),
                descriptor(session, 32));
    });
  }
}

TEST_CASE("writes without a generation, where these were agreed on, close the path") {
  for (const std::size_t size : {0, 4, 7}) {
    auto& victim = Victim::get();
    RawSession session{{.own_peer = true, .features = wire::kFeatureExactlyOnce}};
    victim.forget_log();
    session.start_write(std::vector<std::byte>(size));
    CHECK(session.is_closed());
    victim.complains("a write without a generation");
  }
}

TEST_CASE("a chunk that is used while its request still executes closes the path") {
  // Over the same connection, and over another one of the path.
  for (const std::size_t second : {1, 0}) {
    const char* complaint = "a request for a chunk whose request still executes";
    if (with_new_keys()) complaint = "a key or an address that it may not use";
    dies(complaint, [&](RawSession& session) {
      const auto device = session.open("slow", rnbd::wire::AccessMode::read_only);
      session.start_read(bytes_of(io(device, 0, 0, 512)), 512, 3, 1);
      // When this is answered, the key of the first one is gone for certain.
      if (with_new_keys()) session.open("disk0", rnbd::wire::AccessMode::read_only);
      session.start_read(bytes_of(io(device, 0, 0, 512)), 512, 3, second);
    });
  }
}

TEST_CASE("what is written over a request while it executes has no effect" *
          doctest::skip(with_new_keys())) {
  auto& victim = Victim::get();
  const std::vector<std::byte> garbage(2048, std::byte{0xEE});
  RawSession session;
  const auto device = session.open("slow", rnbd::wire::AccessMode::read_only);
  session.start_read(bytes_of(io(device, 0, 0, 512)), 512, 3);
  // Not before the server has looked at it; the answer takes 2 s.
  std::this_thread::sleep_for(std::chrono::milliseconds{1000});
  session.cid(1).post({.opcode = IBV_WR_RDMA_WRITE, .payload = garbage, .to = session.chunk(3)});
  CHECK(session.answer() == 0);
  CHECK(session.read(bytes_of(io(device, 0, 0, 512)), 512) == 0);
  victim.forget_log();
}

TEST_CASE("a key is good for one request" * doctest::skip(!with_new_keys())) {
  const std::vector<std::byte> bytes(64);
  dies("a key or an address that it may not use", [&](RawSession& session) {
    const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
    const auto before = session.chunk(5);
    session.start_read(bytes_of(io(device, 0, 0, 512)), 512, 5);
    REQUIRE(session.answer() == 0);
    CHECK(session.chunk(5).key != before.key);
    session.cid(1).post({.opcode = IBV_WR_RDMA_WRITE, .payload = bytes, .to = before});
  });
}

TEST_CASE("an answer that cannot be written to where the client wants it closes the path") {
  const auto read_to = [](RawSession& session, RemoteMemory to, std::uint16_t flags) {
    const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
    session.request(0, 512,
                    joined(io(device, 0, 0, 512), read_header(32, 1, flags),
                           wire::Descriptor{to.address, to.key, 512}),
                    544);
  };
  dies("the peer refuses", [&](RawSession& session) { read_to(session, {0, 0}, 0); });
  dies("the peer refuses", [&](RawSession& session) {
    const auto here = session.cid(1).exposed();
    read_to(session, {here.address, here.key + 1}, 0);
  });
  // Across the end of all addresses: nothing is read from the storage for it.
  dies("inconsistent length", [&](RawSession& session) {
    read_to(session, {~std::uint64_t{0} - 510, session.cid(1).exposed().key}, 0);
  });
  dies("the peer refuses", [&](RawSession& session) {
    read_to(session, {~std::uint64_t{0} - 511, session.cid(1).exposed().key}, 0);
  });
}

TEST_CASE("a client whose queue pair the asked invalidation breaks is found by the heartbeats") {
  // Ordinary memory cannot be invalidated remotely. Not every device tells the server.
  auto& victim = Victim::get();
  RawSession session{{.own_peer = true}};
  const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
  victim.forget_log();
  const auto here = session.cid(1).exposed();
  session.request(0, 512,
                  joined(io(device, 0, 0, 512), read_header(32, 1, wire::kNeedInvalidate),
                         wire::Descriptor{here.address, here.key, 512}),
                  544);
  CHECK(session.is_closed());
  victim.complains("");
}

TEST_CASE("what has no meaning is ignored") {
  auto& victim = Victim::get();
  RawSession session;
  victim.forget_log();
  const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
  // Answers and heartbeats where none belong, types that do not exist.
  for (const std::uint32_t type : {1, 2, 3, 7, 10, 15}) {
    for (const std::size_t cid : {0, 1}) session.cid(cid).post({.immediate = type << 28 | 5});
  }
  session.cid(1).post({.immediate = wire::kHeartbeat});
  session.cid(0).post({.immediate = wire::kHeartbeatAck});
  CHECK(session.read(bytes_of(io(device, 0, 0, 512)), 512) == 0);
  // Flags that do not exist, and an invalidation of nothing.
  session.request(1, 0, joined(io(device, 2, 0, 0), read_header(32, 0, 0xFFFF)), 32);
  CHECK(session.answer() == 0);
  victim.is_content();
}

}  // namespace
}  // namespace rtrs::hostile::request_test
