// SPDX-License-Identifier: BSD-3-Clause
// Input: le64 first block asked for, le32 number of ranges, message: any of a brick's, or the data
// of a SYNC.
#include "bridge/protocol/brick_messages.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

namespace {

template <class T>
bool taken(const Result<T>& result) {
  if (result) return true;
  fuzz::require(fuzz::failed_with(result, {DecodeError::too_short, DecodeError::bad_type,
                                           DecodeError::bad_count, DecodeError::bad_value}),
                "only documented errors");
  return false;
}

void check_range(std::uint64_t id, std::uint64_t count) {
  fuzz::require(id % kBrickBlock == 0 && count > 0, "blocks are whole, and some");
  fuzz::require((id >> kBrickBlockShift) + count <= std::uint64_t{1} << 43, "no block wraps");
}

void check_orders(ConstBytes bytes) {
  for (const MessageType type : {kBrickAlloc, kBrickFree}) {
    const auto range = decode_brick_range(bytes, type);
    if (taken(range)) check_range(range->id, range->count);
  }
  const auto unmap = decode_brick_unmap(bytes);
  if (taken(unmap)) check_range(unmap->id, unmap->count);
  taken(decode_brick_list(bytes));
  const auto map = decode_brick_map(bytes);
  if (!taken(map)) return;
  check_range(map->id, map->count);
  fuzz::require(map->count <= kMaxBrickMaps, "few blocks at a time");
}

void check_extents(ConstBytes bytes, std::uint64_t first) {
  const auto page = decode_brick_extents(bytes, first);
  if (!taken(page)) return;
  const auto encoded = encode_brick_extents(page->extents, page->total, bytes.size());
  const auto again = decode_brick_extents(encoded, first);
  fuzz::require(again.has_value(), "what we encode can be decoded");
  fuzz::require(again->extents.size() == page->extents.size(), "extents survive encoding");
  for (const BrickExtent& extent : page->extents) check_range(extent.id, extent.blocks);
}

void check_sync(ConstBytes bytes, std::uint32_t count) {
  const auto ranges = decode_sync_ranges(bytes, count);
  if (!taken(ranges)) return;
  fuzz::require(ranges->size() == count, "all ranges that were announced");
  for (const SyncRange& range : *ranges)
    fuzz::require(range.address + (range.length - 1) >= range.address, "no range wraps");
}

void check_maps(ConstBytes bytes, std::uint64_t id, std::uint32_t count) {
  BrickMap asked;
  asked.id = id / kBrickBlock * kBrickBlock;
  asked.count = count;
  asked.flags = kMapRead;
  const auto maps = decode_brick_maps(bytes, asked);
  if (!taken(maps)) return;
  fuzz::require(maps->size() == count, "all maps that were asked for");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::uint64_t first = input.take<le64>();
  const std::uint32_t count = input.take<le32>();
  const ConstBytes bytes = input.rest();
  taken(decode_brick_info(bytes));
  check_orders(bytes);
  check_extents(bytes, first);
  check_sync(bytes, count);
  check_maps(bytes, first, count);
  return 0;
}
