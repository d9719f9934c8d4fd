// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/call_message.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace rtrs::library::call_message_test {
namespace {

std::vector<std::byte> encoded(CallHeader header, const std::string& rest = {}) {
  std::vector<std::byte> bytes(sizeof(header) + rest.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), rest.data(), rest.size());
  return bytes;
}

wire::DecodeError error_of(CallHeader header, const std::string& rest = {}) {
  const auto call = decode_call(encoded(header, rest));
  REQUIRE_FALSE(call);
  return call.error();
}

CallHeader piece(std::uint64_t offset) {
  CallHeader header;
  header.kind = CallKind::piece;
  header.piece_size = 4096;
  header.out_length = 10000;
  header.place = offset;
  return header;
}

TEST_CASE("a call is read in its parts") {
  CallHeader header;
  header.slot = 5;
  header.generation = 70000;
  header.message_length = 2;
  header.inline_length = 3;
  header.place = 1ULL << 40;
  const auto bytes = encoded(header, "mmddd");
  const auto call = decode_call(bytes);
  REQUIRE(call);
  CHECK(call->header.slot == 5);
  CHECK(call->header.generation == 70000);
  CHECK(call->header.place == 1ULL << 40);
  CHECK(call->message.size() == 2);
  CHECK(call->inline_data.size() == 3);
  CHECK(call->inline_data.data() == bytes.data() + 42);
}

TEST_CASE("messages that contradict themselves are refused") {
  CHECK(decode_call(std::vector<std::byte>(39)).error() == wire::DecodeError::too_short);
  CallHeader header;
  header.message_length = 2;
  CHECK(error_of(header, "m") == wire::DecodeError::bad_length);
  CHECK(error_of(header, "mmm") == wire::DecodeError::bad_length);
  header.kind = static_cast<CallKind>(0);
  CHECK(error_of(header, "mm") == wire::DecodeError::bad_type);
  header.kind = static_cast<CallKind>(5);
  CHECK(error_of(header, "mm") == wire::DecodeError::bad_type);
  header.kind = CallKind::call;
  header.flags = 0x80;
  CHECK(error_of(header, "mm") == wire::DecodeError::bad_value);
}

TEST_CASE("a piece lies inside its data, at the place of a piece") {
  CHECK(decode_call(encoded(piece(0))));
  CHECK(decode_call(encoded(piece(8192))));
  CHECK(error_of(piece(12288)) == wire::DecodeError::bad_length);
  CHECK(error_of(piece(100)) == wire::DecodeError::bad_length);
  CallHeader tiny = piece(0);
  tiny.piece_size = 1;  // each costs memory
  CHECK(error_of(tiny) == wire::DecodeError::bad_length);
}

TEST_CASE("data come in pieces or behind the message, not both") {
  CallHeader header;
  header.flags = kStaged;
  header.out_length = 10000;
  CHECK(decode_call(encoded(header)));
  header.inline_length = 1;
  CHECK(error_of(header, "d") == wire::DecodeError::bad_length);
  header.inline_length = 0;
  header.out_length = 0;
  CHECK(error_of(header) == wire::DecodeError::bad_length);
}

}  // namespace
}  // namespace rtrs::library::call_message_test
