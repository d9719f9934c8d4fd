// SPDX-License-Identifier: BSD-3-Clause
// RNBD messages with the RTRS header behind them, as they lie in a chunk.
#include <doctest/doctest.h>

#include "bridge/protocol/messages.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/unit/wire/hex.hpp"

namespace requests_test {

using namespace rnbd::wire;
using rtrs::wire::bytes_of;
using test::Bytes;
using test::from_hex;
using test::join;
using test::to_hex;

namespace {

constexpr std::uint32_t kDepth = 512;
constexpr std::uint64_t kBuffer = 0x7f3a'5c00'1000;
constexpr std::uint32_t kKey = 0x0004'a7c3;

Bytes read_of(ConstBytes user, std::uint32_t length) {
  rtrs::wire::ReadHeader header;
  header.user_length = static_cast<std::uint16_t>(user.size());
  if (length == 0) return join({user, bytes_of(header)});
  header.descriptor_count = 1;
  return join({user, bytes_of(header), bytes_of(rtrs::wire::Descriptor{kBuffer, kKey, length})});
}

Bytes write_of(ConstBytes user) {
  rtrs::wire::WriteHeader header;
  header.user_length = static_cast<std::uint16_t>(user.size());
  return join({user, bytes_of(header)});
}

Io io_of(std::uint32_t rw, std::uint64_t sector, std::uint32_t length) {
  Io io;
  io.header = header_of(MessageType::io);
  io.rw = rw;
  io.sector = sector;
  io.length = length;
  return io;
}

/// Reads the request back the way a server does: from the immediate and the chunk alone.
rtrs::wire::RequestHeader header_in(const Bytes& request, std::uint32_t data_length,
                                    std::uint32_t immediate) {
  const auto where = rtrs::wire::decode_request(immediate, kDepth);
  CHECK(where.buffer_id == 5);
  Bytes chunk(data_length, std::byte{0x55});
  chunk.insert(chunk.end(), request.begin(), request.end());
  chunk.resize(131072);
  const auto header = rtrs::wire::decode_request_header(chunk, where.header_offset);
  REQUIRE(header);
  CHECK(header->data_length == data_length);
  CHECK(header->user_offset == data_length);
  return *header;
}

}  // namespace

TEST_CASE("requests: a 4 KiB read with its descriptor is the documented 56 bytes") {
  const Bytes request = read_of(bytes_of(io_of(kIoSync, 2048, 4096)), 4096);
  CHECK(to_hex(request) == to_hex(from_hex("04 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00"
                                           "00 01 00 00 00 10 00 00 00 00 00 00 00 00 00 00"
                                           "03 00 20 00 00 00 01 00 00 10 00 5c 3a 7f 00 00"
                                           "c3 a7 04 00 00 10 00 00")));
  const auto header = header_in(request, 4096, 0x0028'1020);
  CHECK(header.is_read);
  CHECK(header.descriptor.length == 4096);
}

TEST_CASE("requests: a 4 KiB write ends in the documented 36 bytes") {
  const Bytes request = write_of(bytes_of(io_of(1, 2048, 4096)));
  CHECK(to_hex(request) ==
        to_hex(from_hex("04 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 01 00 00 00 00 10 00 00"
                        "00 00 00 00 00 00 00 00 02 00 20 00")));
  CHECK_FALSE(header_in(request, 4096, 0x0028'1020).is_read);
}

TEST_CASE("requests: a flush is the documented read of 40 bytes without a descriptor") {
  const Bytes request = read_of(bytes_of(io_of(0x302, 0, 0)), 0);
  CHECK(to_hex(request) ==
        to_hex(from_hex("04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 03 00 00 00 00 00 00"
                        "00 00 00 00 00 00 00 00 03 00 20 00 00 00 00 00")));
  CHECK_FALSE(header_in(request, 0, 0x0028'0020).has_descriptor);
}

TEST_CASE("requests: a discard of 1 MiB at sector 4096 is the documented write without data") {
  const Bytes request = write_of(bytes_of(io_of(3, 4096, 1U << 20)));
  CHECK(to_hex(request) ==
        to_hex(from_hex("04 00 00 00 00 00 00 00 00 10 00 00 00 00 00 00 03 00 00 00 00 00 10 00"
                        "00 00 00 00 00 00 00 00 02 00 20 00")));
  CHECK(header_in(request, 0, 0x0028'0020).user_length == 32);
}

TEST_CASE("requests: the session info is the documented read of 60 bytes") {
  SessionInfo info;
  info.header = header_of(MessageType::session_info);
  const Bytes request = read_of(bytes_of(info), 36);
  CHECK(to_hex(request) == to_hex(join({from_hex("00 00 00 00 02", 36),
                                        from_hex("03 00 24 00 00 00 01 00 00 10 00 5c 3a 7f 00 00"
                                                 "c3 a7 04 00 24 00 00 00")})));
  CHECK(request.size() == 60);
  CHECK(header_in(request, 36, 0x0028'0048).user_length == 36);
}

TEST_CASE("requests: an open is the documented read of 288 bytes") {
  const Bytes request = read_of(bytes_of(encode_open("/dev/ram0", AccessMode::read_write)), 56);
  CHECK(to_hex(request) ==
        to_hex(join({from_hex("02 00 00 00 01 00 2f 64 65 76 2f 72 61 6d 30", 264),
                     from_hex("03 00 08 01 00 00 01 00 00 10 00 5c 3a 7f 00 00"
                              "c3 a7 04 00 38 00 00 00")})));
  CHECK(request.size() == 288);
  CHECK(header_in(request, 56, 0x0028'0140).user_length == 264);
}

TEST_CASE("requests: a close is the documented write of 12 bytes") {
  Close close;
  close.header = header_of(MessageType::close);
  const Bytes request = write_of(bytes_of(close));
  CHECK(to_hex(request) == "05 00 00 00 00 00 00 00 02 00 08 00");
  CHECK(header_in(request, 0, 0x0028'0008).user_length == 8);
}

}  // namespace requests_test
