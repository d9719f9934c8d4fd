// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>
#include <limits>

#include "rdma/wire/messages.hpp"
#include "tests/unit/wire/hex.hpp"

namespace info_test {

using namespace rtrs::wire;
using test::Bytes;
using test::copy;
using test::from_hex;
using test::patched;
using test::to_hex;

namespace {

constexpr std::uint32_t kChunk = 131072;

const Bytes kInfoRequestDump = from_hex("00 00 68 6f 73 74 41 2d 73 74 6f 72 42", 272);

DecodeError request_error(const Bytes& bytes) {
  const auto result = decode_info_request(bytes);
  REQUIRE_FALSE(result);
  return result.error();
}

DecodeError response_error(const Bytes& bytes, std::uint32_t depth, std::uint32_t chunk = kChunk) {
  const auto result = decode_info_response(bytes, depth, chunk);
  REQUIRE_FALSE(result);
  return result.error();
}

}  // namespace

TEST_CASE("info request: a Linux client's message is written and read byte for byte") {
  CHECK(to_hex(bytes_of(encode_info_request("hostA-storB"))) == to_hex(kInfoRequestDump));
  CHECK(decode_info_request(kInfoRequestDump) == "hostA-storB");
}

TEST_CASE("info request: it has exactly 272 bytes and type 0") {
  Bytes longer = kInfoRequestDump;
  longer.resize(273);
  CHECK(request_error(longer) == DecodeError::too_long);
  CHECK(request_error(Bytes(kInfoRequestDump.begin(), kInfoRequestDump.end() - 1)) ==
        DecodeError::too_short);
  CHECK(request_error({}) == DecodeError::too_short);
  CHECK(request_error(patched(kInfoRequestDump, 0, "01 00")) == DecodeError::bad_type);
  CHECK(request_error(patched(kInfoRequestDump, 0, "00 01")) == DecodeError::bad_type);
}

TEST_CASE("info request: garbage after the name's end and in reserved bytes is ignored") {
  Bytes bytes = kInfoRequestDump;
  for (std::size_t i = 14; i < bytes.size(); ++i) bytes[i] = std::byte{0xEE};
  CHECK(decode_info_request(bytes) == "hostA-storB");
}

TEST_CASE("info request: names are terminated, not empty, printable, without slash and dot") {
  CHECK(request_error(Bytes(272)) == DecodeError::bad_name);
  Bytes endless = kInfoRequestDump;
  for (std::size_t i = 2; i < 257; ++i) endless[i] = std::byte{'x'};
  CHECK(request_error(endless) == DecodeError::bad_name);
  CHECK(decode_info_request(patched(endless, 256, "00")) == std::string(254, 'x'));
  for (const char* hex : {"2f", "2e", "0a", "1b", "7f", "80", "ff"}) {
    CHECK(request_error(patched(kInfoRequestDump, 4, hex)) == DecodeError::bad_name);
  }
  CHECK(decode_info_request(patched(kInfoRequestDump, 4, "20")));
  CHECK(decode_info_request(patched(kInfoRequestDump, 4, "7e")));
}

TEST_CASE("session names: 1 to 254 printable characters without slash and dot are valid") {
  CHECK(is_valid_session_name("a"));
  CHECK(is_valid_session_name(std::string(254, 'x')));
  CHECK(is_valid_session_name("rnbdkit-host@17 (test)"));
  CHECK_FALSE(is_valid_session_name(""));
  CHECK_FALSE(is_valid_session_name(std::string(255, 'x')));
  CHECK_FALSE(is_valid_session_name("host.example"));
  CHECK_FALSE(is_valid_session_name("a/b"));
  CHECK_FALSE(is_valid_session_name(std::string_view("a\0b", 3)));
  CHECK_FALSE(is_valid_session_name("a\nb"));
  CHECK_FALSE(is_valid_session_name("h\xC3\xA9"));
}

TEST_CASE("info response: one descriptor per chunk is written byte for byte") {
  std::vector<Descriptor> descriptors(512, Descriptor{0x1'a4c0'0000, 0x0001'2301, kChunk});
  const Bytes message = encode_info_response(descriptors);
  CHECK(message.size() == 8200);
  CHECK(to_hex(ConstBytes{message}.first(40)) ==
        "01 00 00 02 00 00 00 00 "
        "00 00 c0 a4 01 00 00 00 01 23 01 00 00 00 02 00 "
        "00 00 c0 a4 01 00 00 00 01 23 01 00 00 00 02 00");
  const auto chunks = decode_info_response(message, 512, kChunk);
  REQUIRE(chunks);
  CHECK(chunks->size() == 512);
  CHECK(chunks->at(511).address == 0x1'a4c0'0000);
  CHECK(chunks->at(511).key == 0x0001'2301);
}

TEST_CASE("info response: a descriptor covers as many consecutive chunks as fit into it") {
  const Descriptor one[] = {{0x10'0000'0000, 7, 64 * kChunk}};
  const auto chunks = decode_info_response(encode_info_response(one), 64, kChunk);
  REQUIRE(chunks);
  REQUIRE(chunks->size() == 64);
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(chunks->at(i).address == 0x10'0000'0000 + i * kChunk);
    CHECK(chunks->at(i).key == 7);
  }
}

TEST_CASE("info response: descriptors that do not divide the queue depth are fine for us") {
  // A Linux server with 513 chunks and a page-list limit of 512 sends this; a Linux client refuses.
  const Descriptor two[] = {{0x1000'0000, 1, 257 * 4096}, {0x9000'0000, 2, 256 * 4096}};
  const auto chunks = decode_info_response(encode_info_response(two), 513, 4096);
  REQUIRE(chunks);
  CHECK(chunks->at(256).address == 0x1000'0000 + 256 * 4096);
  CHECK(chunks->at(257).address == 0x9000'0000);
  CHECK(chunks->at(512).key == 2);
}

TEST_CASE("info response: type, count and length are checked before anything is used") {
  const Descriptor two[] = {{0x1000, 1, kChunk}, {0x100000, 2, kChunk}};
  const Bytes valid = encode_info_response(two);
  REQUIRE(decode_info_response(valid, 2, kChunk));
  CHECK(response_error({}, 2) == DecodeError::too_short);
  CHECK(response_error(Bytes(valid.begin(), valid.begin() + 7), 2) == DecodeError::too_short);
  CHECK(response_error(Bytes(valid.begin(), valid.end() - 1), 2) == DecodeError::too_short);
  CHECK(response_error(patched(valid, 0, "00 00"), 2) == DecodeError::bad_type);
  CHECK(response_error(patched(valid, 2, "00 00"), 2) == DecodeError::bad_count);
  CHECK(response_error(patched(valid, 2, "03 00"), 2) == DecodeError::bad_count);
  CHECK(response_error(valid, 1) == DecodeError::bad_count);
  CHECK(response_error(valid, 3) == DecodeError::bad_length);
  Bytes longer = valid;
  longer.resize(valid.size() + 1);
  CHECK(response_error(longer, 2) == DecodeError::too_long);
  CHECK(decode_info_response(patched(valid, 4, "de ad be ef"), 2, kChunk));
}

TEST_CASE("info response: a refusal has no descriptors, and an errno") {
  const InfoResponseHeader refusal = encode_info_refusal(ENOMEM);
  const Bytes message{bytes_of(refusal).begin(), bytes_of(refusal).end()};
  CHECK(message == from_hex("01 00 00 00 f4 ff ff ff"));
  CHECK(refusal_of_info_response(message) == ENOMEM);
  CHECK(response_error(message, 1) == DecodeError::bad_count);
  CHECK(refusal_of_info_response(patched(message, 4, "00 00 00 00")) == 0);
  CHECK(refusal_of_info_response(patched(message, 4, "0c 00 00 00")) == 0);
  CHECK(refusal_of_info_response(patched(message, 4, "00 f0 ff ff")) == 0);
  CHECK(refusal_of_info_response(patched(message, 2, "01 00")) == 0);
  CHECK(refusal_of_info_response(patched(message, 0, "00 00")) == 0);
  CHECK(refusal_of_info_response(Bytes(message.begin(), message.end() - 1)) == 0);
}

TEST_CASE("info response: lengths are whole chunks and together the queue depth") {
  const auto error_of = [](std::vector<Descriptor> descriptors, std::uint32_t depth) {
    return response_error(encode_info_response(descriptors), depth);
  };
  CHECK(error_of({{0x1000, 1, 0}}, 1) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, 0}, {0x1000, 1, 2 * kChunk}}, 2) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, kChunk - 1}}, 1) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, kChunk + 512}}, 1) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, 2 * kChunk}}, 1) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, kChunk}}, 2) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, 2 * kChunk}, {0x1000, 1, kChunk}}, 2) == DecodeError::bad_length);
  CHECK(error_of({{0x1000, 1, 0xFFFE'0000}}, 2) == DecodeError::bad_length);
}

TEST_CASE("info response: memory that wraps around the address space is refused") {
  constexpr auto kTop = std::numeric_limits<std::uint64_t>::max();
  const Descriptor fits[] = {{kTop - kChunk, 1, kChunk}};
  CHECK(decode_info_response(encode_info_response(fits), 1, kChunk));
  const Descriptor wraps[] = {{kTop - kChunk + 1, 1, kChunk}};
  CHECK(response_error(encode_info_response(wraps), 1) == DecodeError::bad_length);
}

TEST_CASE("info exchange: random layouts and names survive the way there and back") {
  test::Random random{3};
  for (int i = 0; i < 2000; ++i) {
    const auto depth = static_cast<std::uint32_t>(random.between(1, 300));
    const auto chunk = static_cast<std::uint32_t>(random.between(824, 9000));
    std::vector<Descriptor> descriptors;
    std::vector<ChunkAddress> expected;
    while (expected.size() < depth) {
      const auto covered = random.between(1, depth - expected.size());
      const Descriptor descriptor{random.next() >> 1, static_cast<std::uint32_t>(random.next()),
                                  static_cast<std::uint32_t>(covered * chunk)};
      for (std::uint64_t k = 0; k < covered; ++k)
        expected.push_back({descriptor.address + k * chunk, descriptor.key});
      descriptors.push_back(descriptor);
    }
    const auto chunks = decode_info_response(encode_info_response(descriptors), depth, chunk);
    REQUIRE(chunks);
    REQUIRE(chunks->size() == depth);
    for (std::size_t k = 0; k < depth; ++k) {
      REQUIRE(chunks->at(k).address == expected[k].address);
      REQUIRE(chunks->at(k).key == expected[k].key);
    }
    const auto name = random.text(random.between(1, 254), "abcXYZ019-_ @");
    REQUIRE(decode_info_request(bytes_of(encode_info_request(name))) == name);
  }
}

}  // namespace info_test
