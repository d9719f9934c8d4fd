// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include "rdma/wire/messages.hpp"
#include "tests/unit/wire/hex.hpp"

namespace request_test {

using namespace rtrs::wire;
using test::Bytes;
using test::from_hex;
using test::join;
using test::patched;
using test::to_hex;

namespace {

constexpr std::size_t kChunk = 131072;

// The read header of the documented 4 KiB read.
const Bytes kReadDump = from_hex(
    "03 00 20 00 00 00 01 00 00 10 00 5c 3a 7f 00 00"
    "c3 a7 04 00 00 10 00 00");
const Bytes kWriteDump = from_hex("02 00 20 00");
const Bytes kFlushDump = from_hex("03 00 20 00 00 00 00 00");

/// A chunk with `header` at `offset`.
Bytes chunk_with(const Bytes& header, std::size_t offset, std::size_t size = kChunk) {
  Bytes chunk(size, std::byte{0xA5});
  for (std::size_t i = 0; i < header.size(); ++i) chunk.at(offset + i) = header[i];
  return chunk;
}

DecodeError error_at(const Bytes& chunk, std::uint32_t offset) {
  const auto result = decode_request_header(chunk, offset);
  REQUIRE_FALSE(result);
  return result.error();
}

}  // namespace

TEST_CASE("request header: the documented read is written byte for byte") {
  ReadHeader header;
  header.user_length = 32;
  header.descriptor_count = 1;
  const Descriptor descriptor{0x7f3a'5c00'1000, 0x0004'a7c3, 4096};
  CHECK(to_hex(join({bytes_of(header), bytes_of(descriptor)})) == to_hex(kReadDump));
  WriteHeader write;
  write.user_length = 32;
  CHECK(to_hex(bytes_of(write)) == to_hex(kWriteDump));
}

TEST_CASE("request header: the documented read is understood") {
  const auto header = decode_request_header(chunk_with(kReadDump, 0x1020), 0x1020);
  REQUIRE(header);
  CHECK(header->is_read);
  CHECK_FALSE(header->need_invalidate);
  CHECK(header->has_descriptor);
  CHECK(header->data_length == 4096);
  CHECK(header->user_offset == 4096);
  CHECK(header->user_length == 32);
  CHECK(header->descriptor.address == 0x7f3a'5c00'1000);
  CHECK(header->descriptor.key == 0x0004'a7c3);
  CHECK(header->descriptor.length == 4096);
}

TEST_CASE("request header: one at an odd offset, for an odd place, is understood like any other") {
  auto dump = kReadDump;
  dump.at(8) = std::byte{1};  // the lowest byte of the address
  for (std::uint32_t offset = 0x1021; offset < 0x1029; ++offset) {
    const std::uint32_t data = offset - 32;
    dump.at(20) = static_cast<std::byte>(data & 0xFF);  // the lowest bytes of the length
    dump.at(21) = static_cast<std::byte>(data >> 8);
    const auto header = decode_request_header(chunk_with(dump, offset), offset);
    REQUIRE(header);
    CHECK(header->data_length == data);
    CHECK(header->descriptor.address == 0x7f3a'5c00'1001);
    CHECK(header->descriptor.length == data);
  }
}

TEST_CASE("request header: the documented write and flush are understood") {
  const auto write = decode_request_header(chunk_with(kWriteDump, 0x1020), 0x1020);
  REQUIRE(write);
  CHECK_FALSE(write->is_read);
  CHECK_FALSE(write->has_descriptor);
  CHECK(write->data_length == 4096);
  CHECK(write->user_length == 32);
  const auto flush = decode_request_header(chunk_with(kFlushDump, 32), 32);
  REQUIRE(flush);
  CHECK(flush->is_read);
  CHECK_FALSE(flush->has_descriptor);
  CHECK(flush->data_length == 0);
  CHECK(flush->user_offset == 0);
}

TEST_CASE("request header: only the lowest flag asks for an invalidation") {
  const auto needed =
      decode_request_header(chunk_with(patched(kReadDump, 4, "01 00"), 0x1020), 0x1020);
  REQUIRE(needed);
  CHECK(needed->need_invalidate);
  const auto other =
      decode_request_header(chunk_with(patched(kReadDump, 4, "fe ff"), 0x1020), 0x1020);
  REQUIRE(other);
  CHECK_FALSE(other->need_invalidate);
}

TEST_CASE("request header: without a descriptor there is nothing to invalidate") {
  const auto header = decode_request_header(chunk_with(patched(kFlushDump, 4, "01 00"), 32), 32);
  REQUIRE(header);
  CHECK_FALSE(header->need_invalidate);
}

TEST_CASE("request header: requests and replies of other kinds are refused") {
  for (const char* type : {"00 00", "01 00", "04 00", "05 00", "02 01", "ff ff"}) {
    CHECK(error_at(chunk_with(patched(kReadDump, 0, type), 0x1020), 0x1020) ==
          DecodeError::bad_type);
  }
}

TEST_CASE("request header: more than one descriptor is refused") {
  CHECK(error_at(chunk_with(patched(kReadDump, 6, "02 00"), 0x1020), 0x1020) ==
        DecodeError::bad_count);
  CHECK(error_at(chunk_with(patched(kReadDump, 6, "ff ff"), 0x1020), 0x1020) ==
        DecodeError::bad_count);
}

TEST_CASE("request header: a user message that begins before the chunk is refused") {
  CHECK(decode_request_header(chunk_with(kWriteDump, 32), 32));
  CHECK(error_at(chunk_with(kWriteDump, 31), 31) == DecodeError::bad_length);
  CHECK(error_at(chunk_with(kFlushDump, 0), 0) == DecodeError::bad_length);
  CHECK(decode_request_header(chunk_with(from_hex("02 00 00 00"), 0), 0));
}

TEST_CASE("request header: a read returns exactly the data length, and not nothing") {
  const auto with_length = [](const char* hex, std::uint32_t offset) {
    return decode_request_header(chunk_with(patched(kReadDump, 20, hex), offset), offset);
  };
  CHECK(with_length("00 10 00 00", 0x1020));
  CHECK(with_length("ff 0f 00 00", 0x1020).error() == DecodeError::bad_length);
  CHECK(with_length("01 10 00 00", 0x1020).error() == DecodeError::bad_length);
  CHECK(with_length("00 00 00 00", 0x1020).error() == DecodeError::bad_length);
  CHECK(with_length("00 00 00 00", 0x20).error() == DecodeError::bad_length);
  CHECK(with_length("ff ff ff ff", 0x1020).error() == DecodeError::bad_length);
}

TEST_CASE("request header: it must end inside the chunk, whatever it is") {
  const auto last = [](std::size_t header) { return static_cast<std::uint32_t>(kChunk - header); };
  CHECK(decode_request_header(chunk_with(kWriteDump, last(4)), last(4)));
  CHECK(decode_request_header(chunk_with(kFlushDump, last(8)), last(8)));
  const Bytes cut_write(kWriteDump.begin(), kWriteDump.end() - 1);
  CHECK(error_at(chunk_with(cut_write, last(3)), last(3)) == DecodeError::too_short);
  const Bytes cut_flush(kFlushDump.begin(), kFlushDump.end() - 1);
  CHECK(error_at(chunk_with(cut_flush, last(7)), last(7)) == DecodeError::too_short);
  const Bytes cut_read(kReadDump.begin(), kReadDump.end() - 1);
  CHECK(error_at(chunk_with(cut_read, last(23)), last(23)) == DecodeError::too_short);
  CHECK(error_at(Bytes(kChunk), last(0)) == DecodeError::too_short);
  CHECK(error_at(Bytes(kChunk), static_cast<std::uint32_t>(kChunk + 1)) == DecodeError::too_short);
  CHECK(error_at(Bytes(kChunk), 0xFFFF'FFFF) == DecodeError::too_short);
  CHECK(error_at({}, 0) == DecodeError::too_short);
}

TEST_CASE("request header: random valid requests give their lengths back") {
  test::Random random{4};
  Bytes chunk(16384);
  for (int i = 0; i < 20000; ++i) {
    const bool is_read = random.flip();
    const auto user = static_cast<std::uint32_t>(random.below(300));
    const auto data = static_cast<std::uint32_t>(random.below(16384 - 24 - user + 1));
    const std::uint32_t offset = user + data;
    ReadHeader read;
    read.user_length = static_cast<std::uint16_t>(user);
    read.flags = static_cast<std::uint16_t>(random.next());
    read.descriptor_count = data == 0 ? 0 : 1;
    const Descriptor descriptor{random.next(), static_cast<std::uint32_t>(random.next()), data};
    WriteHeader write;
    write.user_length = static_cast<std::uint16_t>(user);
    const Bytes bytes =
        is_read ? join({bytes_of(read), bytes_of(descriptor)}) : join({bytes_of(write)});
    std::copy(bytes.begin(), bytes.end(), chunk.begin() + offset);
    const auto header = decode_request_header(chunk, offset);
    REQUIRE(header);
    REQUIRE(header->is_read == is_read);
    REQUIRE(header->data_length == data);
    REQUIRE(header->user_offset == data);
    REQUIRE(header->user_length == user);
    REQUIRE(header->has_descriptor == (is_read && data != 0));
    if (header->has_descriptor) REQUIRE(header->descriptor.address == descriptor.address);
  }
}

TEST_CASE("rkey message: the documented message is written and read byte for byte") {
  RkeyMessage message;
  message.buffer_id = 5;
  message.key = 0x0001'2602;
  CHECK(to_hex(bytes_of(message)) == "04 00 05 00 02 26 01 00");
  const auto back = decode_rkey_message(from_hex("04 00 05 00 02 26 01 00"), 5);
  REQUIRE(back);
  CHECK(back->key == 0x0001'2602);
}

TEST_CASE("rkey message: a foreign buffer, another type or 7 bytes are refused") {
  CHECK(decode_rkey_message(from_hex("04 00 05 00 02 26 01 00"), 4).error() ==
        DecodeError::bad_value);
  CHECK(decode_rkey_message(from_hex("04 00 05 00 02 26 01 00"), 0x1'0005).error() ==
        DecodeError::bad_value);
  CHECK(decode_rkey_message(from_hex("03 00 05 00 02 26 01 00"), 5).error() ==
        DecodeError::bad_type);
  CHECK(decode_rkey_message(from_hex("04 00 05 00 02 26 01"), 5).error() == DecodeError::too_short);
  CHECK(decode_rkey_message(from_hex("04 00 05 00 02 26 01 00 ff"), 5));
}

}  // namespace request_test
