// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/brick_messages.hpp"

#include <doctest/doctest.h>

using namespace rnbd::wire;

namespace rnbd::brick_messages_test {
namespace {

constexpr std::uint64_t kLast = ~std::uint64_t{0} - (kBrickBlock - 1);

BrickRange range(std::uint64_t id, std::uint32_t count, std::uint32_t flags = 0) {
  return {header_of(kBrickAlloc), 3, id, count, flags};
}

BrickMap map(std::uint64_t id, std::uint32_t count, std::uint32_t flags) {
  return {header_of(kBrickMap), 3, id, count, flags, Uuid{1, 2}, 5, 4};
}

template <class T, class Decode>
void check_refused(const T& message, DecodeError error, Decode decode) {
  const auto decoded = decode(rtrs::wire::bytes_of(message));
  REQUIRE_FALSE(decoded);
  CHECK(decoded.error() == error);
}

TEST_CASE("brick messages: an allocation survives") {
  const auto again =
      decode_brick_range(rtrs::wire::bytes_of(range(kLast, 1, kAllocAll)), kBrickAlloc);
  REQUIRE(again);
  CHECK(again->id == kLast);
  CHECK(again->count == 1U);
  CHECK(again->flags == kAllocAll);
}

TEST_CASE("brick messages: ranges that cannot be are refused") {
  const auto decode = [](ConstBytes bytes) { return decode_brick_range(bytes, kBrickAlloc); };
  check_refused(range(0, 0), DecodeError::bad_count, decode);
  check_refused(range(kLast, 2), DecodeError::bad_count, decode);
  check_refused(range(4096, 1), DecodeError::bad_value, decode);
  check_refused(range(0, 1, 2), DecodeError::bad_value, decode);
  check_refused(map(0, 1, kMapRead), DecodeError::bad_type, decode);
}

TEST_CASE("brick messages: a map needs rights, a number and few blocks") {
  REQUIRE(decode_brick_map(rtrs::wire::bytes_of(map(0, kMaxBrickMaps, kMapFlags))));
  check_refused(map(0, kMaxBrickMaps + 1, kMapRead), DecodeError::bad_count, decode_brick_map);
  check_refused(map(0, 1, kMapOthersRead), DecodeError::bad_value, decode_brick_map);
  check_refused(map(0, 1, 64 | kMapRead), DecodeError::bad_value, decode_brick_map);
  BrickMap unnumbered = map(0, 1, kMapRead);
  unnumbered.number = 0;
  check_refused(unnumbered, DecodeError::bad_value, decode_brick_map);
}

TEST_CASE("brick messages: only the maps that were asked for are believed") {
  const BrickMap asked = map(kBrickBlock, 2, kMapRead | kMapWrite | kMapOthersRead);
  std::vector<MapEntry> entries{{kBrickBlock, 0x1000, 7, 9, kMapRead | kMapWrite},
                                {2 * kBrickBlock, 0x2000, 7, 10, kMapRead | kMapWrite}};
  const auto again = decode_brick_maps(encode_brick_maps(entries), asked);
  REQUIRE(again);
  REQUIRE(again->size() == 2);
  CHECK((*again)[1].address == 0x2000U);
  CHECK((*again)[1].key == 10U);
  entries[1].id = 0;
  CHECK(decode_brick_maps(encode_brick_maps(entries), asked).error() == DecodeError::bad_value);
  entries.pop_back();
  CHECK(decode_brick_maps(encode_brick_maps(entries), asked).error() == DecodeError::bad_count);
}

TEST_CASE("brick messages: a list survives, cut to the room that there is") {
  const std::vector<BrickExtent> extents{{0, 2, kBrickInMemory, 0},
                                         {4 * kBrickBlock, 1, kBrickSlow, 0},
                                         {5 * kBrickBlock, 9, kBrickInMemory, 0}};
  const auto whole = decode_brick_extents(encode_brick_extents(extents, 12, 4096), 0);
  REQUIRE(whole);
  CHECK(whole->total == 12);
  REQUIRE(whole->extents.size() == 3);
  CHECK(whole->extents[2].blocks == 9U);
  const auto cut = decode_brick_extents(encode_brick_extents(extents, 12, 16 + 2 * 24 + 23), 0);
  REQUIRE(cut);
  CHECK(cut->extents.size() == 2);
}

TEST_CASE("brick messages: extents out of order, empty or outside are refused") {
  const auto refused = [](std::vector<BrickExtent> extents) {
    const auto page = decode_brick_extents(encode_brick_extents(extents, 1, 4096), kBrickBlock);
    REQUIRE_FALSE(page);
    return page.error() == DecodeError::bad_value;
  };
  CHECK(refused({{0, 1, 0, 0}}));
  CHECK(refused({{kBrickBlock, 0, 0, 0}}));
  CHECK(refused({{kBrickBlock, 2, 0, 0}, {2 * kBrickBlock, 1, 0, 0}}));
  CHECK(refused({{kLast, 2, 0, 0}}));
  CHECK(refused({{kBrickBlock, 1, 16, 0}}));
}

TEST_CASE("brick messages: sync ranges survive, and must not wrap") {
  const std::vector<SyncRange> ranges{{5, 1}, {~std::uint64_t{0}, 1}};
  const auto bytes = encode_sync_ranges(ranges);
  const auto again = decode_sync_ranges(bytes, 2);
  REQUIRE(again);
  CHECK((*again)[1].address == ~std::uint64_t{0});
  CHECK(decode_sync_ranges(bytes, 3).error() == DecodeError::bad_count);
  CHECK(decode_sync_ranges(bytes, kMaxSyncRanges + 1).error() == DecodeError::bad_count);
  CHECK(decode_sync_ranges(encode_sync_ranges({{{~std::uint64_t{0}, 2}}}), 1).error() ==
        DecodeError::bad_value);
  CHECK(decode_sync_ranges(encode_sync_ranges({{{0, 0}}}), 1).error() == DecodeError::bad_value);
}

TEST_CASE("brick messages: what a brick says of itself must be possible") {
  BrickInfoResponse info;
  info.header = header_of(kBrickInfoResponse);
  info.blocks = 8;
  info.free = 8;
  info.durability = 1;
  REQUIRE(decode_brick_info(rtrs::wire::bytes_of(info)));
  info.free = 9;
  check_refused(info, DecodeError::bad_count, decode_brick_info);
  info.free = 0;
  info.durability = 4;
  check_refused(info, DecodeError::bad_value, decode_brick_info);
  info.durability = 0;
  info.block_shift = 12;
  check_refused(info, DecodeError::bad_value, decode_brick_info);
}

}  // namespace
}  // namespace rnbd::brick_messages_test
