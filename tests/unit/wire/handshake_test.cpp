// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/handshake.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "rdma/wire/messages.hpp"
#include "tests/unit/wire/hex.hpp"

namespace handshake_test {

using namespace rtrs::wire;
using test::Bytes;
using test::copy;
using test::from_hex;
using test::patched;
using test::to_hex;

namespace {

// cid 0 of 5, first attempt of the first path.
const Bytes kRequestDump = from_hex(
    "00 00 bd 1b 00 02 00 00 05 00 01 00 6f 1d 2c 3b"
    "4a 59 4e 68 b7 78 87 96 a5 b4 c3 d2 0a 1b 2c 3d"
    "4e 5f 40 61 82 73 84 95 a6 b7 c8 d9 01 00 00 00"
    "00 00 00 00 00 00 00 00");
const Bytes kAcceptDump = from_hex(
    "bd 1b 00 02 00 00 00 02 00 f0 01 00 00 10 00 00"
    "02 00 00 00",
    56);

ConnectParameters dumped_request() {
  ConnectParameters parameters;
  parameters.cid_count = 5;
  parameters.reconnect_count = 1;
  parameters.path_uuid = {0x6f, 0x1d, 0x2c, 0x3b, 0x4a, 0x59, 0x4e, 0x68,
                          0xb7, 0x78, 0x87, 0x96, 0xa5, 0xb4, 0xc3, 0xd2};
  parameters.session_uuid = {0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f, 0x40, 0x61,
                             0x82, 0x73, 0x84, 0x95, 0xa6, 0xb7, 0xc8, 0xd9};
  parameters.first_connection = true;
  return parameters;
}

DecodeError request_error(const Bytes& bytes) {
  const auto result = decode_connect_request(bytes);
  REQUIRE_FALSE(result);
  return result.error();
}

DecodeError response_error(const Bytes& bytes) {
  const auto result = decode_connect_response(bytes);
  REQUIRE_FALSE(result);
  return result.error();
}

Bytes accept_bytes(std::uint16_t queue_depth, std::uint32_t max_io, std::uint32_t max_header) {
  return copy(bytes_of(encode(AcceptParameters{queue_depth, max_io, max_header, false, {}})));
}

}  // namespace

TEST_CASE("connect request: the record of a Linux client is written byte for byte") {
  CHECK(to_hex(bytes_of(encode(dumped_request()))) == to_hex(kRequestDump));
}

TEST_CASE("connect request: the record of a Linux client is read back field by field") {
  const auto request = decode_connect_request(kRequestDump);
  REQUIRE(request);
  CHECK(request->cid == 0);
  CHECK(request->cid_count == 5);
  CHECK(request->reconnect_count == 1);
  CHECK(request->path_uuid == dumped_request().path_uuid);
  CHECK(request->session_uuid == dumped_request().session_uuid);
  CHECK(request->first_connection);
  CHECK_FALSE(request->extension.present);
}

TEST_CASE("connect request: zero padding up to 92, 148 or 196 bytes changes nothing") {
  for (std::size_t size : {92, 148, 196}) {
    Bytes padded = kRequestDump;
    padded.resize(size);
    const auto request = decode_connect_request(padded);
    REQUIRE(request);
    CHECK(to_hex(bytes_of(encode(*request))) == to_hex(kRequestDump));
  }
}

TEST_CASE("connect request: 55 bytes are too short, and so are none") {
  CHECK(request_error(Bytes(kRequestDump.begin(), kRequestDump.end() - 1)) ==
        DecodeError::too_short);
  CHECK(request_error({}) == DecodeError::too_short);
}

TEST_CASE("connect request: a foreign magic is refused before its version is looked at") {
  CHECK(request_error(patched(kRequestDump, 2, "bc")) == DecodeError::bad_magic);
  CHECK(request_error(Bytes(56)) == DecodeError::bad_magic);
  CHECK(request_error(patched(kRequestDump, 2, "00 00 00 03")) == DecodeError::bad_magic);
}

TEST_CASE("connect request: only the major version counts") {
  CHECK(decode_connect_request(patched(kRequestDump, 4, "07 02")));
  CHECK(decode_connect_request(patched(kRequestDump, 4, "ff 02")));
  CHECK(request_error(patched(kRequestDump, 4, "00 03")) == DecodeError::bad_version);
  CHECK(request_error(patched(kRequestDump, 4, "00 01")) == DecodeError::bad_version);
  CHECK(request_error(patched(kRequestDump, 4, "02 00")) == DecodeError::bad_version);
}

TEST_CASE("connect request: cid must be below cid_count, and cid_count at most 4096") {
  CHECK(request_error(patched(kRequestDump, 8, "00 00")) == DecodeError::bad_count);
  CHECK(request_error(patched(kRequestDump, 6, "05 00")) == DecodeError::bad_count);
  CHECK(request_error(patched(kRequestDump, 8, "01 10")) == DecodeError::bad_count);
  CHECK(decode_connect_request(patched(kRequestDump, 6, "ff 0f 00 10")));
  CHECK(request_error(patched(kRequestDump, 6, "00 10 00 10")) == DecodeError::bad_count);
}

TEST_CASE("connect request: bits beside first_connection and what a router wrote are ignored") {
  const auto first = decode_connect_request(patched(kRequestDump, 44, "ff ff"));
  REQUIRE(first);
  CHECK(first->first_connection);
  const auto later = decode_connect_request(patched(kRequestDump, 44, "fe"));
  REQUIRE(later);
  CHECK_FALSE(later->first_connection);
  CHECK(decode_connect_request(patched(kRequestDump, 0, "00 40")));
}

TEST_CASE("connect request: the kind of a path counts only with the feature") {
  const auto kind = [](std::string_view hex) {
    return decode_connect_request(patched(kRequestDump, 45, hex));
  };
  CHECK(kind("01 52 4b 01 00 08 00 00 00")->kind == PathKind::memory);
  CHECK(kind("00 52 4b 01 00 08 00 00 00")->kind == PathKind::requests);
  CHECK(kind("01 52 4b 01 00 07 00 00 00")->kind == PathKind::requests);
  CHECK(kind("01 00 00 00 00 08 00 00 00")->kind == PathKind::requests);
  CHECK(kind("02 52 4b 01 00 08 00 00 00").error() == DecodeError::bad_value);
  CHECK(encode(*kind("01 52 4b 01 00 08 00 00 00")).kind == 1);
}

TEST_CASE("connect request: features count only behind the extension's magic and version") {
  const auto features = [](std::string_view hex) {
    const auto request = decode_connect_request(patched(kRequestDump, 46, hex));
    REQUIRE(request);
    CHECK(request->extension.present == (request->extension.features != 0));
    return request->extension.features;
  };
  CHECK(features("52 4b 01 00 00 00 01 00") == kFeatureUserMessages);
  CHECK(features("52 4b 01 ff 00 00 01 00 ff ff") == kFeatureUserMessages);
  CHECK(features("52 4c 01 00 00 00 01 00") == 0);
  CHECK(features("4b 52 01 00 00 00 01 00") == 0);
  CHECK(features("52 4b 02 00 00 00 01 00") == 0);
  CHECK(features("52 4b 00 00 00 00 01 00") == 0);
  CHECK(features("00 00 00 00 ff ff ff ff") == 0);
}

TEST_CASE("connect request: without an extension no feature leaves, even if one is set") {
  auto parameters = dumped_request();
  parameters.extension.features = 0xFFFF'FFFF;
  CHECK(to_hex(bytes_of(encode(parameters))) == to_hex(kRequestDump));
}

TEST_CASE("connect response: a Linux server's accept is written byte for byte") {
  CHECK(to_hex(bytes_of(encode(AcceptParameters{512, 126976, 4096, true, {}}))) ==
        to_hex(kAcceptDump));
  // always_invalidate=N with 64 chunks
  CHECK(to_hex(bytes_of(encode(AcceptParameters{64, 126976, 4096, false, {}}))) ==
        to_hex(from_hex("bd 1b 00 02 00 00 40 00 00 f0 01 00 00 10 00 00", 56)));
}

TEST_CASE("connect response: a Linux server's accept is read back field by field") {
  for (std::size_t size : {56, 196}) {
    Bytes bytes = kAcceptDump;
    bytes.resize(size);
    const auto answer = decode_connect_response(bytes);
    REQUIRE(answer);
    CHECK(answer->error == 0);
    CHECK(answer->accept.queue_depth == 512);
    CHECK(answer->accept.max_io_size == 126976);
    CHECK(answer->accept.max_header_size == 4096);
    CHECK(answer->accept.chunk_size() == 131072);
    CHECK(answer->accept.new_rkey);
    CHECK_FALSE(answer->accept.extension.present);
  }
}

TEST_CASE("connect response: rejects carry the errno as a negative number") {
  struct {
    int error;
    const char* hex;
  } const rejects[] = {{EEXIST, "bd 1b 00 02 ef ff"},
                       {ECONNRESET, "bd 1b 00 02 98 ff"},
                       {ENXIO, "bd 1b 00 02 fa ff"},
                       {ENOMEM, "bd 1b 00 02 f4 ff"}};
  for (const auto& reject : rejects) {
    CHECK(to_hex(bytes_of(encode_reject(reject.error))) == to_hex(from_hex(reject.hex, 56)));
    const auto answer = decode_connect_response(from_hex(reject.hex, 148));
    REQUIRE(answer);
    CHECK(answer->error == reject.error);
  }
}

TEST_CASE("connect response: an errno outside 1..4095 is no reject") {
  CHECK(response_error(from_hex("bd 1b 00 02 68 00", 56)) == DecodeError::bad_value);
  CHECK(response_error(from_hex("bd 1b 00 02 00 80", 56)) == DecodeError::bad_value);
  CHECK(response_error(from_hex("bd 1b 00 02 00 f0", 56)) == DecodeError::bad_value);
  CHECK(decode_connect_response(from_hex("bd 1b 00 02 01 f0", 56))->error == 4095);
}

TEST_CASE("connect response: short, foreign or of another major version is refused") {
  CHECK(response_error(Bytes(kAcceptDump.begin(), kAcceptDump.end() - 1)) ==
        DecodeError::too_short);
  CHECK(response_error(patched(kAcceptDump, 0, "be")) == DecodeError::bad_magic);
  CHECK(response_error(patched(kAcceptDump, 2, "00 03")) == DecodeError::bad_version);
  CHECK(decode_connect_response(patched(kAcceptDump, 2, "09 02")));
}

TEST_CASE("connect response: sizes that cannot work are refused") {
  CHECK(decode_connect_response(accept_bytes(1, 512, 312)));
  CHECK(response_error(accept_bytes(0, 126976, 4096)) == DecodeError::bad_value);
  CHECK(response_error(accept_bytes(1, 511, 4096)) == DecodeError::bad_value);
  CHECK(response_error(accept_bytes(1, 512, 311)) == DecodeError::bad_value);
}

TEST_CASE("connect response: chunks must fit into 28 bits, also when their size overflows 32") {
  CHECK(decode_connect_response(accept_bytes(512, 524288 - 4096, 4096)));
  CHECK(response_error(accept_bytes(513, 524288 - 4096, 4096)) == DecodeError::bad_value);
  CHECK(response_error(accept_bytes(512, 524288, 4096)) == DecodeError::bad_value);
  CHECK(decode_connect_response(accept_bytes(1, (1U << 28) - 4096, 4096)));
  CHECK(response_error(accept_bytes(1, (1U << 28) - 4095, 4096)) == DecodeError::bad_value);
  CHECK(response_error(accept_bytes(1, 0xFFFF'FFFF, 0xFFFF'FFFF)) == DecodeError::bad_value);
  CHECK(response_error(accept_bytes(1, 0xFFFF'F000, 4096 + 1024)) == DecodeError::bad_value);
}

TEST_CASE("connect response: unknown flags and stale reserved bytes are ignored") {
  const auto answer = decode_connect_response(patched(kAcceptDump, 16, "fd ff ff ff aa bb cc dd"));
  REQUIRE(answer);
  CHECK_FALSE(answer->accept.new_rkey);
  CHECK_FALSE(answer->accept.extension.present);
  CHECK(answer->accept.extension.session_epoch == 0);
}

TEST_CASE("connect response: the extension carries features and the session epoch") {
  const AcceptParameters accept{
      64, 126976, 4096, false, {true, kFeatureUserMessages, 0x1122'3344'5566'7788}};
  const auto record = encode(accept);
  CHECK(to_hex(bytes_of(record)) ==
        to_hex(from_hex("bd 1b 00 02 00 00 40 00 00 f0 01 00 00 10 00 00 00 00 00 00"
                        "52 4b 01 00 00 00 01 00 88 77 66 55 44 33 22 11",
                        56)));
  const auto answer = decode_connect_response(bytes_of(record));
  REQUIRE(answer);
  CHECK(answer->accept.extension.features == kFeatureUserMessages);
  CHECK(answer->accept.extension.session_epoch == 0x1122'3344'5566'7788);
  const auto foreign = decode_connect_response(patched(copy(bytes_of(record)), 22, "02"));
  REQUIRE(foreign);
  CHECK(foreign->accept.extension.session_epoch == 0);
}

TEST_CASE("connect response: a server says who it is in its last eight bytes, or not at all") {
  AcceptParameters accept{64, 4096, 4096, false, {}};
  accept.extension = {.present = true, .server_id = 0x1122'3344'5566'7788};
  auto bytes = copy(bytes_of(encode(accept)));
  CHECK(to_hex(bytes).substr(to_hex(bytes).size() - 23) == "88 77 66 55 44 33 22 11");
  CHECK(decode_connect_response(bytes)->accept.extension.server_id == 0x1122'3344'5566'7788);
  bytes[20] = std::byte{0};  // what a peer without the extension left there says nothing
  CHECK(decode_connect_response(bytes)->accept.extension.server_id == 0);
}

TEST_CASE("connect response: an opinion of the path that does not exist is refused") {
  AcceptParameters accept{64, 4096, 4096, false, {}};
  accept.extension = {true, kFeatureExactlyOnce, 7, 8, PathAccess::inaccessible};
  auto bytes = copy(bytes_of(encode(accept)));
  const auto good = decode_connect_response(bytes);
  REQUIRE(good);
  CHECK(good->accept.extension.session_epoch == 7);
  CHECK(good->accept.extension.volatile_epoch == 8);
  CHECK(good->accept.extension.access == PathAccess::inaccessible);
  bytes[44] = std::byte{3};
  CHECK(response_error(bytes) == DecodeError::bad_value);
  bytes[20] = std::byte{0};  // without the extension these bytes say nothing
  CHECK(decode_connect_response(bytes));
}

TEST_CASE("access notices: the documented immediates, and no opinion that does not exist") {
  CHECK(access_immediate(PathAccess::optimized) == 0xB000'0000);
  CHECK(access_immediate(PathAccess::non_optimized) == 0xB000'0001);
  CHECK(access_immediate(PathAccess::inaccessible) == 0xB000'0002);
  for (const std::uint32_t value : {0U, 1U, 2U}) {
    CHECK(decode_access(value) == static_cast<PathAccess>(value));
  }
  for (const std::uint32_t value : {3U, 0x100U, 0x1'0000U, 0xFFF'FFFFU}) {
    CHECK(decode_access(value).error() == DecodeError::bad_value);
  }
  CHECK(std::string{to_string(PathAccess::non_optimized)} == "non-optimized");
}

TEST_CASE("generations are compared around their end") {
  CHECK(is_newer(1, 0));
  CHECK(is_newer(0, 0xFFFFFFFF));
  CHECK_FALSE(is_newer(0xFFFFFFFF, 0));
  CHECK_FALSE(is_newer(5, 5));
}

TEST_CASE("handshake: 20000 random records survive the way there and back") {
  test::Random random{1};
  for (int i = 0; i < 20000; ++i) {
    ConnectParameters request;
    request.cid_count = static_cast<std::uint16_t>(random.between(1, kMaxConnections));
    request.cid = static_cast<std::uint16_t>(random.below(request.cid_count));
    request.reconnect_count = static_cast<std::uint16_t>(random.next());
    random.fill(std::as_writable_bytes(std::span{request.path_uuid}));
    random.fill(std::as_writable_bytes(std::span{request.session_uuid}));
    request.first_connection = random.flip();
    request.extension.present = random.flip();
    if (request.extension.present) {
      request.extension.features = static_cast<std::uint32_t>(random.next());
    }
    const auto record = encode(request);
    const auto back = decode_connect_request(bytes_of(record));
    REQUIRE(back);
    REQUIRE(to_hex(bytes_of(encode(*back))) == to_hex(bytes_of(record)));
    REQUIRE(back->cid == request.cid);
    REQUIRE(back->extension.features == request.extension.features);

    AcceptParameters accept;
    accept.queue_depth = static_cast<std::uint16_t>(random.between(1, 512));
    accept.max_io_size = static_cast<std::uint32_t>(random.between(512, 400000));
    accept.max_header_size = static_cast<std::uint32_t>(random.between(312, 65536));
    accept.new_rkey = random.flip();
    if (random.flip()) {
      accept.extension = {true, static_cast<std::uint32_t>(random.next()), random.next(),
                          random.next(), static_cast<PathAccess>(random.below(3))};
    }
    const auto answer = decode_connect_response(bytes_of(encode(accept)));
    REQUIRE(answer);
    REQUIRE(to_hex(bytes_of(encode(answer->accept))) == to_hex(bytes_of(encode(accept))));
  }
}

}  // namespace handshake_test
