// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/brick_messages.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rnbd::wire {
namespace {

constexpr std::uint64_t kBrickBlocks = std::uint64_t{1} << (64 - kBrickBlockShift);
constexpr std::uint32_t kMapRights = kMapRead | kMapWrite;

bool begins_block(std::uint64_t id) { return id % kBrickBlock == 0; }

bool fits_addresses(std::uint64_t id, std::uint64_t blocks) {
  return blocks > 0 && blocks <= kBrickBlocks - (id >> kBrickBlockShift);
}

/// The common part of ALLOC, FREE, MAP and UNMAP.
template <class T>
Result<T> decode_blocks(ConstBytes bytes, MessageType type, std::uint32_t known_flags) {
  auto message = decode<T>(bytes, type);
  if (!message) return message;
  if (!begins_block(message->id) || (message->flags & ~known_flags) != 0)
    return tl::unexpected(DecodeError::bad_value);
  if (!fits_addresses(message->id, message->count)) return tl::unexpected(DecodeError::bad_count);
  return message;
}

template <class Head, class Entry>
std::vector<std::byte> encode_table(const Head& head, std::span<const Entry> entries) {
  std::vector<std::byte> message(sizeof(head) + entries.size_bytes());
  std::memcpy(message.data(), &head, sizeof(head));
  if (!entries.empty())
    std::memcpy(message.data() + sizeof(head), entries.data(), entries.size_bytes());
  return message;
}

template <class Entry>
Result<std::vector<Entry>> decode_table(ConstBytes bytes, std::size_t count) {
  if (count > bytes.size() / sizeof(Entry)) return tl::unexpected(DecodeError::bad_count);
  std::vector<Entry> entries(count);
  if (count != 0) std::memcpy(entries.data(), bytes.data(), count * sizeof(Entry));
  return entries;
}

bool are_in_order(const std::vector<BrickExtent>& extents, std::uint64_t first) {
  std::uint64_t from = first >> kBrickBlockShift;
  for (const BrickExtent& extent : extents) {
    const std::uint64_t block = extent.id >> kBrickBlockShift;
    if (!begins_block(extent.id) || block < from || !fits_addresses(extent.id, extent.blocks))
      return false;
    if ((extent.flags & ~kBrickExtentFlags) != 0) return false;
    from = block + extent.blocks;
  }
  return true;
}

}  // namespace

Result<BrickInfoResponse> decode_brick_info(ConstBytes bytes) {
  auto answer = decode<BrickInfoResponse>(bytes, kBrickInfoResponse);
  if (!answer) return answer;
  if (answer->block_shift != kBrickBlockShift ||
      answer->durability > static_cast<std::uint8_t>(Durability::flush) ||
      answer->keys > static_cast<std::uint8_t>(BrickKeys::window))
    return tl::unexpected(DecodeError::bad_value);
  if (answer->free > answer->blocks) return tl::unexpected(DecodeError::bad_count);
  return answer;
}

Result<BrickRange> decode_brick_range(ConstBytes bytes, MessageType type) {
  return decode_blocks<BrickRange>(bytes, type, kAllocAll);
}

Result<BrickMap> decode_brick_map(ConstBytes bytes) {
  auto message = decode_blocks<BrickMap>(bytes, kBrickMap, kMapFlags);
  if (!message) return message;
  if (message->count > kMaxBrickMaps) return tl::unexpected(DecodeError::bad_count);
  if ((message->flags & kMapRights) == 0 || message->number == 0)
    return tl::unexpected(DecodeError::bad_value);
  return message;
}

Result<BrickUnmap> decode_brick_unmap(ConstBytes bytes) {
  return decode_blocks<BrickUnmap>(bytes, kBrickUnmap, kUnmapDrop);
}

Result<BrickList> decode_brick_list(ConstBytes bytes) {
  auto message = decode<BrickList>(bytes, kBrickList);
  if (message && message->what > static_cast<std::uint32_t>(BrickListing::recalled))
    return tl::unexpected(DecodeError::bad_value);
  return message;
}

std::vector<std::byte> encode_brick_maps(std::span<const MapEntry> entries) {
  BrickMapResponse head;
  head.header = header_of(kBrickMapResponse);
  head.count = static_cast<std::uint32_t>(entries.size());
  return encode_table(head, entries);
}

Result<std::vector<MapEntry>> decode_brick_maps(ConstBytes bytes, const BrickMap& asked) {
  const auto head = decode<BrickMapResponse>(bytes, kBrickMapResponse);
  if (!head) return tl::unexpected(head.error());
  if (head->count != asked.count) return tl::unexpected(DecodeError::bad_count);
  auto entries = decode_table<MapEntry>(bytes.subspan(sizeof(BrickMapResponse)), head->count);
  if (!entries) return entries;
  std::uint64_t id = asked.id;
  for (const MapEntry& entry : *entries) {
    if (entry.id != id || entry.flags != (asked.flags & kMapRights))
      return tl::unexpected(DecodeError::bad_value);
    id += kBrickBlock;
  }
  return entries;
}

std::vector<std::byte> encode_brick_extents(std::span<const BrickExtent> extents,
                                            std::uint64_t total, std::size_t capacity) {
  BrickListResponse head;
  head.header = header_of(kBrickListResponse);
  head.total = total;
  const std::size_t room =
      capacity < sizeof(head) ? 0 : (capacity - sizeof(head)) / sizeof(BrickExtent);
  extents = extents.first(std::min(extents.size(), room));
  head.count = static_cast<std::uint32_t>(extents.size());
  return encode_table(head, extents);
}

Result<BrickPage> decode_brick_extents(ConstBytes bytes, std::uint64_t first) {
  const auto head = decode<BrickListResponse>(bytes, kBrickListResponse);
  if (!head) return tl::unexpected(head.error());
  auto extents = decode_table<BrickExtent>(bytes.subspan(sizeof(BrickListResponse)), head->count);
  if (!extents) return tl::unexpected(extents.error());
  if (!are_in_order(*extents, first)) return tl::unexpected(DecodeError::bad_value);
  return BrickPage{head->total, std::move(*extents)};
}

std::vector<std::byte> encode_sync_ranges(std::span<const SyncRange> ranges) {
  const auto bytes = std::as_bytes(ranges);
  return {bytes.begin(), bytes.end()};
}

Result<std::vector<SyncRange>> decode_sync_ranges(ConstBytes data, std::uint32_t count) {
  if (count > kMaxSyncRanges) return tl::unexpected(DecodeError::bad_count);
  auto ranges = decode_table<SyncRange>(data, count);
  if (!ranges) return ranges;
  const bool valid = std::all_of(ranges->begin(), ranges->end(), [](const SyncRange& range) {
    return range.length > 0 &&
           range.length - 1 <= std::numeric_limits<std::uint64_t>::max() - range.address;
  });
  if (!valid) return tl::unexpected(DecodeError::bad_value);
  return ranges;
}

}  // namespace rnbd::wire
