// SPDX-License-Identifier: BSD-3-Clause
// Messages that only rnbdkit peers exchange.
#include <doctest/doctest.h>

#include <limits>

#include "bridge/protocol/directory.hpp"
#include "tests/unit/wire/hex.hpp"

namespace extension_test {

using namespace rnbd::wire;
using test::Bytes;
using test::from_hex;
using test::join;
using test::patched;
using test::to_hex;

namespace {

const std::vector<ExportName> kExports = {{"disk0", "first"}, {"dir/disk1", ""}, {"z", "ünï"}};
const Bytes kPageDump = from_hex(
    "04 80 00 00 03 00 00 00 03 00 00 00"
    "05 00 05 00 64 69 73 6b 30 66 69 72 73 74"
    "09 00 00 00 64 69 72 2f 64 69 73 6b 31"
    "01 00 05 00 7a c3 bc 6e c3 af");

DecodeError page_error(const Bytes& bytes) {
  const auto result = decode_export_page(bytes);
  REQUIRE_FALSE(result);
  return result.error();
}

const Bytes kStatusDump = from_hex(
    "06 80 00 00 02 00 00 00"
    "00 10 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
    "00 f0 00 00 00 00 00 00 03 00 00 00 00 00 00 00");

DecodeError status_error(const Bytes& bytes, std::uint64_t length) {
  const auto result = decode_block_status_response(bytes, length);
  REQUIRE_FALSE(result);
  return result.error();
}

}  // namespace

TEST_CASE("export page: all exports are written and read byte for byte") {
  CHECK(to_hex(encode_export_page(kExports, 0, 4096)) == to_hex(kPageDump));
  const auto page = decode_export_page(kPageDump);
  REQUIRE(page);
  CHECK(page->total == 3);
  CHECK(page->exports == kExports);
}

TEST_CASE("export page: zeros that fill the reader's buffer are ignored") {
  Bytes bytes = kPageDump;
  bytes.resize(4096);
  CHECK(decode_export_page(bytes)->exports == kExports);
}

TEST_CASE("export page: a page ends before the entry that does not fit") {
  const auto names = [](std::uint32_t first, std::size_t capacity) {
    const Bytes bytes = encode_export_page(kExports, first, capacity);
    CHECK(bytes.size() <= capacity);
    const auto page = decode_export_page(bytes);
    REQUIRE(page);
    CHECK(page->total == 3);
    return page->exports;
  };
  CHECK(names(0, kPageDump.size()).size() == 3);
  CHECK(names(0, kPageDump.size() - 1).size() == 2);
  CHECK(names(2, 4096) == std::vector<ExportName>{kExports[2]});
  CHECK(names(3, 4096).empty());
  CHECK(names(0xFFFF'FFFF, 4096).empty());
  CHECK(names(0, 12).empty());
}

TEST_CASE("export page: a description that is too long is cut rather than its export lost") {
  const std::vector<ExportName> exports = {{"a", std::string(100000, 'x')}, {"b", ""}};
  const auto small = decode_export_page(encode_export_page(exports, 0, 100));
  REQUIRE(small);
  REQUIRE(small->exports.size() == 1);
  CHECK(small->exports[0].description == std::string(100 - 17, 'x'));
  const auto large = decode_export_page(encode_export_page(exports, 0, 200000));
  REQUIRE(large);
  REQUIRE(large->exports.size() == 2);
  CHECK(large->exports[0].description.size() == 65535);
}

TEST_CASE("export page: reading page after page yields every export once") {
  std::vector<ExportName> exports;
  for (int i = 0; i < 1000; ++i) exports.push_back({"disk" + std::to_string(i), "number"});
  std::vector<ExportName> seen;
  for (;;) {
    const auto page = decode_export_page(
        encode_export_page(exports, static_cast<std::uint32_t>(seen.size()), 4096));
    REQUIRE(page);
    if (page->exports.empty()) break;
    seen.insert(seen.end(), page->exports.begin(), page->exports.end());
  }
  CHECK(seen == exports);
}

TEST_CASE("export page: impossible counts and lengths are refused") {
  CHECK(page_error({}) == DecodeError::too_short);
  CHECK(page_error(Bytes(kPageDump.begin(), kPageDump.begin() + 11)) == DecodeError::too_short);
  CHECK(page_error(patched(kPageDump, 0, "03 80")) == DecodeError::bad_type);
  CHECK(page_error(patched(kPageDump, 4, "02 00 00 00")) == DecodeError::bad_count);
  CHECK(page_error(patched(kPageDump, 4, "ff ff ff ff ff ff ff ff")) == DecodeError::bad_count);
  CHECK(page_error(Bytes(kPageDump.begin(), kPageDump.end() - 1)) == DecodeError::bad_length);
  CHECK(page_error(Bytes(kPageDump.begin(), kPageDump.end() - 7)) == DecodeError::too_short);
  CHECK(page_error(patched(kPageDump, 12, "00 00")) == DecodeError::bad_length);
  CHECK(page_error(patched(kPageDump, 12, "ff 00")) == DecodeError::bad_length);
  CHECK(page_error(encode_export_page({{std::string(255, 'n'), ""}}, 0, 4096)) ==
        DecodeError::bad_length);
  CHECK(page_error(patched(kPageDump, 14, "ff ff")) == DecodeError::bad_length);
}

TEST_CASE("export page: names and descriptions that could garble a terminal are refused") {
  CHECK(page_error(patched(kPageDump, 16, "1b")) == DecodeError::bad_name);
  CHECK(page_error(patched(kPageDump, 16, "00")) == DecodeError::bad_name);
  CHECK(page_error(patched(kPageDump, 16, "0a")) == DecodeError::bad_name);
  CHECK(page_error(patched(kPageDump, 21, "1b")) == DecodeError::bad_name);
  CHECK(page_error(patched(kPageDump, 21, "00")) == DecodeError::bad_name);
  CHECK(decode_export_page(patched(kPageDump, 21, "0a")));
}

TEST_CASE("directory: entries are written and read byte for byte") {
  DirectoryEntry disk{.name = "disk0", .description = "first", .size = 0x10000};
  disk.uuid[0] = 0xAA;
  disk.may_write = disk.in_use = true;
  const std::vector<DirectoryEntry> all = {disk, {.name = "z", .description = "", .waiting = true}};
  const Bytes dump = from_hex(
      "0c 80 00 00 02 00 00 00 02 00 00 00"
      "00 00 01 00 00 00 00 00 aa 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
      "03 00 00 00 05 00 05 00 64 69 73 6b 30 66 69 72 73 74"
      "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
      "04 00 00 00 01 00 00 00 7a");
  CHECK(to_hex(encode_directory_page(all, 0, 4096)) == to_hex(dump));
  const auto page = decode_directory_page(dump);
  REQUIRE(page);
  CHECK(page->total == 2);
  CHECK(page->entries == all);
  CHECK(decode_directory_page(patched(dump, 36, "ff ff ff ff")));  // flags of the future
  const auto error_of = [](const Bytes& bytes) {
    const auto result = decode_directory_page(bytes);
    REQUIRE_FALSE(result);
    return result.error();
  };
  CHECK(error_of(patched(dump, 0, "04")) == DecodeError::bad_type);
  CHECK(error_of(patched(dump, 4, "01")) == DecodeError::bad_count);
  CHECK(error_of(patched(dump, 8, "ff ff ff ff")) == DecodeError::bad_count);
  CHECK(error_of(patched(dump, 40, "00 00")) == DecodeError::bad_length);
  CHECK(error_of(patched(dump, 42, "ff ff")) == DecodeError::bad_length);
  CHECK(error_of(patched(dump, 44, "1b")) == DecodeError::bad_name);
  CHECK(error_of(Bytes(dump.begin(), dump.end() - 1)) == DecodeError::bad_length);
}

TEST_CASE("directory: referrals and addresses are told apart from exports") {
  const DirectoryEntry path{.name = "tcp:a:1", .description = "", .kind = DirectoryKind::path};
  const DirectoryEntry referral{
      .name = "vm", .description = "rnbd://b/vm", .kind = DirectoryKind::referral};
  const Bytes dump = encode_directory_page({referral, path}, 0, 4096);
  CHECK(dump[12 + 24] == std::byte{8});
  CHECK(dump[12 + 32 + 2 + 11 + 24] == std::byte{16});
  const auto page = decode_directory_page(dump);
  REQUIRE(page);
  CHECK(page->entries == std::vector<DirectoryEntry>{referral, path});
}

TEST_CASE("directory: a question says which kinds are wanted, and an older one means exports") {
  const auto question = decode_directory(from_hex("0b 80 00 00 05 00 00 00 06 00 00 00"));
  REQUIRE(question);
  CHECK(question->first == 5);
  CHECK(question->kinds == (kDirectoryReferrals | kDirectoryPaths));
  for (const char* older : {"0b 80 00 00 05 00 00 00", "0b 80 00 00 05 00 00 00 ff ff ff"}) {
    const auto exports = decode_directory(from_hex(older));
    REQUIRE(exports);
    CHECK(exports->first == 5);
    CHECK(exports->kinds == kDirectoryExports);
  }
  CHECK(decode_directory(from_hex("0b 80 00 00 05 00 00")).error() == DecodeError::too_short);
  CHECK(decode_directory(from_hex("0d 80 00 00 05 00 00 00 06 00 00 00")).error() ==
        DecodeError::bad_type);
}

TEST_CASE("who: question and answer are written and read byte for byte") {
  const Who who = encode_who("disk0");
  const auto bytes = rtrs::wire::bytes_of(who);
  const auto name = decode_who(bytes);
  REQUIRE(name);
  CHECK(*name == "disk0");
  CHECK(decode_who(bytes.first(259)).error() == DecodeError::too_short);
  Who nameless;
  nameless.header = who.header;
  CHECK(decode_who(rtrs::wire::bytes_of(nameless)).error() == DecodeError::bad_name);

  const Bytes dump = from_hex("0e 80 00 00 03 00 00 00 76 6d 31");
  CHECK(to_hex(encode_who_response({"vm1"})) == to_hex(dump));
  CHECK(*decode_who_response(dump) == WhoAnswer{"vm1"});
  const Bytes refusal = from_hex("0e 80 00 00 03 00 01 00 76 6d 31");
  CHECK(to_hex(encode_who_response({"vm1", true})) == to_hex(refusal));
  CHECK(*decode_who_response(refusal) == WhoAnswer{"vm1", true});
  CHECK(encode_who_response({std::string(5000, 'x')}).size() == 8 + kMaxWho);
  CHECK(decode_who_response(patched(dump, 0, "0c")).error() == DecodeError::bad_type);
  CHECK(decode_who_response(patched(dump, 4, "04")).error() == DecodeError::bad_length);
  CHECK(decode_who_response(patched(dump, 4, "ff ff")).error() == DecodeError::bad_length);
  CHECK(decode_who_response(patched(dump, 9, "1b")).error() == DecodeError::bad_value);
  CHECK(decode_who_response(Bytes(dump.begin(), dump.begin() + 7)).error() ==
        DecodeError::too_short);
}

TEST_CASE("block status: extents are written and read byte for byte") {
  const Extent extents[] = {{0x1000, 0, 0}, {0xf000, kExtentHole | kExtentZero, 0}};
  CHECK(to_hex(encode_block_status_response(extents)) == to_hex(kStatusDump));
  Bytes padded = kStatusDump;
  padded.resize(4096);
  const auto back = decode_block_status_response(padded, 0x10000);
  REQUIRE(back);
  REQUIRE(back->size() == 2);
  CHECK(back->at(0).length == 0x1000);
  CHECK(back->at(1).flags == 3);
}

TEST_CASE("block status: extents may end early but never reach beyond what was asked") {
  CHECK(decode_block_status_response(kStatusDump, 0x10000));
  CHECK(decode_block_status_response(kStatusDump, 0x10001));
  CHECK(status_error(kStatusDump, 0xFFFF) == DecodeError::bad_length);
  CHECK(status_error(kStatusDump, 0) == DecodeError::bad_length);
  CHECK(status_error(patched(kStatusDump, 24, "ff ff ff ff ff ff ff ff"),
                     std::numeric_limits<std::uint64_t>::max()) == DecodeError::bad_length);
}

TEST_CASE("block status: no extent, an empty one or more than there are bytes is refused") {
  CHECK(status_error({}, 1) == DecodeError::too_short);
  CHECK(status_error(Bytes(kStatusDump.begin(), kStatusDump.begin() + 7), 0x10000) ==
        DecodeError::too_short);
  CHECK(status_error(patched(kStatusDump, 0, "05 80"), 0x10000) == DecodeError::bad_type);
  CHECK(status_error(patched(kStatusDump, 4, "00"), 0x10000) == DecodeError::bad_count);
  CHECK(status_error(patched(kStatusDump, 4, "03"), 0x10000) == DecodeError::bad_count);
  CHECK(status_error(patched(kStatusDump, 4, "ff ff ff ff"), 0x10000) == DecodeError::bad_count);
  CHECK(status_error(Bytes(kStatusDump.begin(), kStatusDump.end() - 1), 0x10000) ==
        DecodeError::bad_count);
  CHECK(status_error(patched(kStatusDump, 8, "00 00"), 0x10000) == DecodeError::bad_length);
}

TEST_CASE("extension: questions to a server have their documented bytes") {
  CHECK(to_hex(rtrs::wire::bytes_of(DeviceInfo{header_of(MessageType::device_info), 7})) ==
        "01 80 00 00 07 00 00 00");
  CHECK(to_hex(rtrs::wire::bytes_of(ListExports{header_of(MessageType::list_exports), 512})) ==
        "03 80 00 00 00 02 00 00");
  CHECK(to_hex(rtrs::wire::bytes_of(
            BlockStatus{header_of(MessageType::block_status), 7, 0x1000, 0x2000})) ==
        "05 80 00 00 07 00 00 00 00 10 00 00 00 00 00 00 00 20 00 00 00 00 00 00");
  CHECK(to_hex(rtrs::wire::bytes_of(Cache{header_of(MessageType::cache), 7, 0x1000, 0x2000})) ==
        "07 80 00 00 07 00 00 00 00 10 00 00 00 00 00 00 00 20 00 00 00 00 00 00");
}

TEST_CASE("extension: the answer about a device has its documented bytes") {
  DeviceInfoResponse info;
  info.header = header_of(MessageType::device_info_response);
  info.device_id = 1;
  info.size = 0x1'0000'01ff;
  info.export_uuid[0] = 0xAA;
  info.export_uuid[15] = 0xBB;
  info.flags = kDeviceExtents | kDeviceCache;
  info.preferred_block = 4096;
  info.generation = 0x7'0000'0005;
  info.found_generation = 0x7'0000'0004;
  const Bytes dump = from_hex(
      "02 80 00 00 01 00 00 00 ff 01 00 00 01 00 00 00"
      "aa 00 00 00 00 00 00 00 00 00 00 00 00 00 00 bb"
      "14 00 00 00 00 10 00 00 00 00 00 00 00 00 00 00"
      "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
      "05 00 00 00 07 00 00 00 04 00 00 00 07 00 00 00",
      80);
  CHECK(to_hex(rtrs::wire::bytes_of(info)) == to_hex(dump));
  const auto back = decode<DeviceInfoResponse>(dump, MessageType::device_info_response);
  REQUIRE(back);
  CHECK(back->size == 0x1'0000'01ff);
}

TEST_CASE("extension: random pages and extents survive the way there and back") {
  test::Random random{6};
  for (int i = 0; i < 2000; ++i) {
    std::vector<ExportName> exports(random.below(20));
    for (auto& entry : exports) {
      entry.name = random.text(random.between(1, 254), "abc/._-");
      entry.description = random.text(random.below(500), "text \n\xC3\xBC");
    }
    const auto page = decode_export_page(encode_export_page(exports, 0, 1U << 20));
    REQUIRE(page);
    REQUIRE(page->exports == exports);

    std::vector<Extent> extents(random.between(1, 50));
    std::uint64_t total = 0;
    for (auto& extent : extents) {
      extent.length = random.between(1, 1ULL << 40);
      extent.flags = static_cast<std::uint32_t>(random.below(4));
      total += extent.length;
    }
    const auto back = decode_block_status_response(encode_block_status_response(extents), total);
    REQUIRE(back);
    REQUIRE(to_hex(encode_block_status_response(*back)) ==
            to_hex(encode_block_status_response(extents)));
  }
}

}  // namespace extension_test
