// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"

#include <doctest/doctest.h>

#include "tests/unit/wire/hex.hpp"

namespace messages_test {

using namespace rnbd::wire;
using test::Bytes;
using test::copy;
using test::from_hex;
using test::patched;
using test::to_hex;

namespace {

const Bytes kOpenDump = from_hex("02 00 00 00 01 00 2f 64 65 76 2f 72 61 6d 30", 264);
const Bytes kReadDump = from_hex(
    "04 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00"
    "00 01 00 00 00 10 00 00 00 00 00 00 00 00 00 00");

DecodeError open_error(const Bytes& bytes) {
  const auto result = decode_open(bytes);
  REQUIRE_FALSE(result);
  return result.error();
}

/// Every feature of a device with 1 GiB, as the documentation prints it.
OpenResponse documented_device() {
  OpenResponse response;
  response.header = header_of(MessageType::open_response);
  response.sectors = 0x20'0000;
  response.max_hw_sectors = 248;
  response.max_discard_sectors = 0x3f'ffff;
  response.discard_granularity = 4096;
  response.physical_block_size = 4096;
  response.logical_block_size = 512;
  response.max_segments = 128;
  response.cache_policy = kCacheFua | kCacheWriteback;
  return response;
}

}  // namespace

TEST_CASE("message type: it is read from the first two of at least four bytes") {
  CHECK(decode_type(from_hex("04 00 00 00")) == MessageType::io);
  CHECK(decode_type(from_hex("04 00 ff ff")) == MessageType::io);
  CHECK(decode_type(from_hex("07 80 00 00")) == MessageType::cache);
  CHECK(decode_type(from_hex("04 00 00")).error() == DecodeError::too_short);
  CHECK(decode_type({}).error() == DecodeError::too_short);
}

TEST_CASE("session info: a Linux server's answer is written and read byte for byte") {
  SessionInfo info;
  info.header = header_of(MessageType::session_info_response);
  CHECK(to_hex(rtrs::wire::bytes_of(info)) == to_hex(from_hex("01 00 00 00 02 00", 36)));
  const auto back =
      decode<SessionInfo>(from_hex("01 00 00 00 02 00", 36), MessageType::session_info_response);
  REQUIRE(back);
  CHECK(back->version == 2);
}

TEST_CASE("fixed messages: they may be longer than the struct, never shorter or of another type") {
  const Bytes info = from_hex("00 00 00 00 02", 36);
  CHECK(decode<SessionInfo>(info, MessageType::session_info));
  CHECK(decode<SessionInfo>(from_hex("00 00 ee ee 02 ee", 40), MessageType::session_info));
  CHECK(decode<SessionInfo>(info, MessageType::session_info_response).error() ==
        DecodeError::bad_type);
  const Bytes cut(info.begin(), info.end() - 1);
  CHECK(decode<SessionInfo>(cut, MessageType::session_info).error() == DecodeError::too_short);
  CHECK(decode<Close>(from_hex("05 00 00 00 00 00 00 00"), MessageType::close));
  CHECK(decode<Close>(from_hex("05 00 00 00 00 00 00"), MessageType::close).error() ==
        DecodeError::too_short);
}

TEST_CASE("open: the documented message is written and read byte for byte") {
  CHECK(to_hex(rtrs::wire::bytes_of(encode_open("/dev/ram0", AccessMode::read_write))) ==
        to_hex(kOpenDump));
  const auto open = decode_open(kOpenDump);
  REQUIRE(open);
  CHECK(open->mode == AccessMode::read_write);
  CHECK(open->device_name == "/dev/ram0");
}

TEST_CASE("open: garbage in padding, reserved bytes and after the name is ignored") {
  Bytes bytes = patched(patched(kOpenDump, 2, "ee ee"), 5, "ee");
  for (std::size_t i = 16; i < bytes.size(); ++i) bytes[i] = std::byte{0xEE};
  const auto open = decode_open(bytes);
  REQUIRE(open);
  CHECK(open->device_name == "/dev/ram0");
}

TEST_CASE("open: there are three access modes") {
  CHECK(decode_open(patched(kOpenDump, 4, "00"))->mode == AccessMode::read_only);
  CHECK(decode_open(patched(kOpenDump, 4, "02"))->mode == AccessMode::migration);
  CHECK(open_error(patched(kOpenDump, 4, "03")) == DecodeError::bad_value);
  CHECK(open_error(patched(kOpenDump, 4, "ff")) == DecodeError::bad_value);
}

TEST_CASE("open: names are terminated, not empty and without control characters") {
  CHECK(open_error(patched(kOpenDump, 6, "00")) == DecodeError::bad_name);
  CHECK(open_error(patched(kOpenDump, 8, "0a")) == DecodeError::bad_name);
  CHECK(open_error(patched(kOpenDump, 8, "1b")) == DecodeError::bad_name);
  CHECK(open_error(patched(kOpenDump, 8, "7f")) == DecodeError::bad_name);
  CHECK(decode_open(patched(kOpenDump, 8, "c3 a9"))->device_name == "/d\xC3\xA9/ram0");
  Bytes endless = kOpenDump;
  for (std::size_t i = 6; i < 261; ++i) endless[i] = std::byte{'x'};
  CHECK(open_error(endless) == DecodeError::bad_name);
  CHECK(decode_open(patched(endless, 260, "00"))->device_name == std::string(254, 'x'));
}

TEST_CASE("open: another type or 263 bytes are refused") {
  CHECK(open_error(patched(kOpenDump, 0, "03 00")) == DecodeError::bad_type);
  CHECK(open_error(Bytes(kOpenDump.begin(), kOpenDump.end() - 1)) == DecodeError::too_short);
  CHECK(open_error({}) == DecodeError::too_short);
}

TEST_CASE("open response: the documented device is written and read byte for byte") {
  const Bytes dump = from_hex(
      "03 00 00 00 00 00 00 00 00 00 20 00 00 00 00 00 f8 00 00 00 00 00 00 00 ff ff 3f 00"
      "00 10 00 00 00 00 00 00 00 10 00 02 80 00 00 00 00 03",
      56);
  CHECK(to_hex(rtrs::wire::bytes_of(documented_device())) == to_hex(dump));
  const auto back = decode<OpenResponse>(dump, MessageType::open_response);
  REQUIRE(back);
  CHECK(back->sectors == 0x20'0000);
  CHECK(back->max_discard_sectors == 0x3f'ffff);
  CHECK(back->logical_block_size == 512);
  CHECK(back->cache_policy == 3);
}

TEST_CASE("open response: what a Linux 6.1 server says of a 256 MiB RAM disk is understood") {
  const auto device =
      decode<OpenResponse>(from_hex("03 00 00 00 00 00 00 00 00 00 08 00 00 00 00 00 ff 00 00 00"
                                    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
                                    "00 10 00 02 80 00 00 00 00 00",
                                    56),
                           MessageType::open_response);
  REQUIRE(device);
  CHECK(device->sectors * 512 == 256U << 20);
  CHECK(device->max_hw_sectors == 255);
  CHECK(device->max_discard_sectors == 0);
  CHECK(device->physical_block_size == 4096);
  CHECK(device->logical_block_size == 512);
  CHECK(device->max_segments == 128);
  CHECK(device->cache_policy == 0);
}

TEST_CASE("io: the documented read is written and read byte for byte") {
  Io io;
  io.header = header_of(MessageType::io);
  io.sector = 2048;
  io.rw = kIoSync;
  io.length = 4096;
  CHECK(to_hex(rtrs::wire::bytes_of(io)) == to_hex(kReadDump));
  const auto back = decode_io(kReadDump);
  REQUIRE(back);
  CHECK(back->operation() == IoOperation::read);
  CHECK(back->flags() == kIoSync);
  CHECK(back->sector == 2048);
  CHECK(back->length == 4096);
}

TEST_CASE("io: what a Linux client sends for each operation is understood") {
  const auto rw = [](const char* hex) { return *decode_io(patched(kReadDump, 16, hex)); };
  CHECK(rw("01 00 00 00").operation() == IoOperation::write);
  CHECK(rw("01 00 00 00").flags() == 0);
  CHECK(rw("01 03 00 00").flags() == (kIoSync | kIoFua));
  CHECK(rw("02 03 00 00").operation() == IoOperation::flush);
  CHECK(rw("02 07 00 00").flags() == (kIoSync | kIoFua | kIoPreflush));
  CHECK(rw("03 01 00 00").operation() == IoOperation::discard);
  CHECK(rw("04 00 00 00").operation() == IoOperation::secure_erase);
  CHECK(rw("05 08 00 00").operation() == IoOperation::write_zeroes);
  CHECK(rw("05 08 00 00").flags() == kIoNoUnmap);
  CHECK(static_cast<int>(rw("09 00 00 00").operation()) == 9);
}

TEST_CASE("io: 26 to 32 bytes are enough, and padding is ignored") {
  Bytes bytes = patched(kReadDump, 24, "04 40 ee ee ee ee ee ee");
  for (std::size_t size : {26, 28, 32}) {
    bytes.resize(32);
    bytes.resize(size);
    const auto io = decode_io(bytes);
    REQUIRE(io);
    CHECK(io->priority == 0x4004);
    CHECK(to_hex(rtrs::wire::bytes_of(*io)) == to_hex(patched(kReadDump, 24, "04 40")));
  }
  bytes.resize(25);
  CHECK(decode_io(bytes).error() == DecodeError::too_short);
  CHECK(decode_io(patched(kReadDump, 0, "05 00")).error() == DecodeError::bad_type);
  CHECK(decode_io({}).error() == DecodeError::too_short);
}

TEST_CASE("protocol: random opens and ios survive the way there and back") {
  test::Random random{5};
  for (int i = 0; i < 20000; ++i) {
    Io io;
    io.header = header_of(MessageType::io);
    io.device_id = static_cast<std::uint32_t>(random.next());
    io.sector = random.next();
    io.rw = static_cast<std::uint32_t>(random.next());
    io.length = static_cast<std::uint32_t>(random.next());
    io.priority = static_cast<std::uint16_t>(random.next());
    const auto back = decode_io(rtrs::wire::bytes_of(io));
    REQUIRE(back);
    REQUIRE(to_hex(rtrs::wire::bytes_of(*back)) == to_hex(rtrs::wire::bytes_of(io)));
    REQUIRE((static_cast<std::uint32_t>(back->operation()) | back->flags()) == io.rw);

    const auto name = random.text(random.between(1, 254), "abz019/._- \xC3\xA9");
    const auto mode = static_cast<AccessMode>(random.below(3));
    const auto open = decode_open(rtrs::wire::bytes_of(encode_open(name, mode)));
    REQUIRE(open);
    REQUIRE(open->device_name == name);
    REQUIRE(open->mode == mode);
  }
}

}  // namespace messages_test
