// SPDX-License-Identifier: BSD-3-Clause
// Messages between a client and a brick. Clients read and write a brick's blocks one-sided.
// Questions (BRICK INFO, MAP, LIST) may be asked again; orders (ALLOC, FREE, UNMAP, SYNC, REVOKE
// PATH) are carried out once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd::wire {

/// A feature of the user protocol's half: the messages of this file.
inline constexpr std::uint32_t kFeaturePassive = 1U << 19;

inline constexpr auto kBrickInfo = MessageType{0x8011};
inline constexpr auto kBrickInfoResponse = MessageType{0x8012};
inline constexpr auto kBrickAlloc = MessageType{0x8013};
inline constexpr auto kBrickFree = MessageType{0x8015};
inline constexpr auto kBrickMap = MessageType{0x8017};
inline constexpr auto kBrickMapResponse = MessageType{0x8018};
inline constexpr auto kBrickUnmap = MessageType{0x8019};
inline constexpr auto kBrickList = MessageType{0x801B};
inline constexpr auto kBrickListResponse = MessageType{0x801C};
inline constexpr auto kBrickSync = MessageType{0x801D};
inline constexpr auto kBrickRevokePath = MessageType{0x801F};

/// Type of the immediate that tells a client that the server wants blocks back; answered with
/// itself.
inline constexpr std::uint32_t kRecallNotice = 12;

inline constexpr unsigned kBrickBlockShift = 21;
inline constexpr std::uint64_t kBrickBlock = std::uint64_t{1} << kBrickBlockShift;  ///< bytes
/// Blocks in one MAP at most.
inline constexpr std::uint32_t kMaxBrickMaps = 64;
/// Ranges in one SYNC at most.
inline constexpr std::uint32_t kMaxSyncRanges = 4096;

/// When a one-sided write is durable.
enum class Durability : std::uint8_t {
  none = 0,              ///< never: plain memory
  sync = 1,              ///< after a SYNC that names its range
  read_after_write = 2,  ///< after a read on the same connection
  flush = 3,             ///< after a flush on the same connection
};

enum class BrickKeys : std::uint8_t { region = 0, window = 1 };

struct BrickInfo {
  Header header;
  le32 device_id = 0;
};
static_assert(sizeof(BrickInfo) == 8);

struct BrickInfoResponse {
  Header header;
  le32 device_id = 0;
  le64 blocks = 0;     ///< that can be allocated altogether
  le64 free = 0;       ///< of them
  le64 in_memory = 0;  ///< blocks that memory has room for
  /// Another number than before: writes that were not synced may be lost.
  le64 sync_epoch = 0;
  Uuid brick{};
  le32 max_maps = 0;  ///< of this session at a time
  le32 lease = 0;     ///< milliseconds until a recalled block must be unmapped
  std::uint8_t block_shift = kBrickBlockShift;
  std::uint8_t durability = 0;
  std::uint8_t keys = 0;
  std::array<std::uint8_t, 5> reserved{};
};
static_assert(sizeof(BrickInfoResponse) == 72 && offsetof(BrickInfoResponse, sync_epoch) == 32);
static_assert(offsetof(BrickInfoResponse, brick) == 40);
static_assert(offsetof(BrickInfoResponse, max_maps) == 56);
static_assert(offsetof(BrickInfoResponse, block_shift) == 64);

enum AllocFlag : std::uint32_t { kAllocAll = 1 };  ///< all or nothing

/// ALLOC and FREE of `count` blocks from `id` on.
struct BrickRange {
  Header header;
  le32 device_id = 0;
  le64 id = 0;  ///< virtual address, a multiple of the block's size
  le32 count = 0;
  le32 flags = 0;
};
static_assert(sizeof(BrickRange) == 24 && offsetof(BrickRange, count) == 16);

/// Of a MAP: the rights of the mapper, the rights that it leaves to others meanwhile, and how it
/// waits.
enum MapFlag : std::uint32_t {
  kMapRead = 1,
  kMapWrite = 2,
  kMapOthersRead = 4,
  kMapOthersWrite = 8,
  kMapNoWait = 16,  ///< EAGAIN rather than wait for the slow tier
};
inline constexpr std::uint32_t kMapFlags = 31;

struct BrickMap {
  Header header;
  le32 device_id = 0;
  le64 id = 0;
  le32 count = 0;
  le32 flags = 0;
  Uuid path{};       ///< the memory path that the keys are for
  le32 number = 0;   ///< counts the session's MAPs from 1 on
  le32 settled = 0;  ///< all below it have ended for the client
};
static_assert(sizeof(BrickMap) == 48 && offsetof(BrickMap, path) == 24);
static_assert(offsetof(BrickMap, number) == 40);

/// Followed by `count` MapEntry.
struct BrickMapResponse {
  Header header;
  le32 count = 0;
  le64 reserved = 0;
};
static_assert(sizeof(BrickMapResponse) == 16);

struct MapEntry {
  le64 id = 0;
  le64 address = 0;
  le64 generation = 0;  ///< of this map, for its UNMAP
  le32 key = 0;
  le32 flags = 0;  ///< the rights of the key: kMapRead, kMapWrite
};
static_assert(sizeof(MapEntry) == 32 && offsetof(MapEntry, key) == 24);

enum UnmapFlag : std::uint32_t { kUnmapDrop = 1 };  ///< the content need not be kept

struct BrickUnmap {
  Header header;
  le32 device_id = 0;
  le64 id = 0;
  le32 count = 0;
  le32 flags = 0;
  le64 generation = 0;
};
static_assert(sizeof(BrickUnmap) == 32 && offsetof(BrickUnmap, generation) == 24);

enum class BrickListing : std::uint32_t {
  allocated = 0,
  mapped_by_me = 1,
  mapped = 2,
  recalled = 3,  ///< from me
};

struct BrickList {
  Header header;
  le32 device_id = 0;
  le64 first = 0;  ///< id
  le32 what = 0;
  le32 reserved = 0;
};
static_assert(sizeof(BrickList) == 24 && offsetof(BrickList, what) == 16);

/// Followed by `count` BrickExtent in the order of ids, apart from each other or different. An
/// empty page ends the list.
struct BrickListResponse {
  Header header;
  le32 count = 0;
  le64 total = 0;  ///< blocks of the whole list
};
static_assert(sizeof(BrickListResponse) == 16 && offsetof(BrickListResponse, total) == 8);

enum BrickExtentFlag : std::uint32_t {
  kBrickInMemory = 1,
  kBrickSlow = 2,
  kBrickMappedRead = 4,
  kBrickMappedWrite = 8,
};
inline constexpr std::uint32_t kBrickExtentFlags = 15;

struct BrickExtent {
  le64 id = 0;
  le64 blocks = 0;
  le32 flags = 0;
  le32 reserved = 0;
};
static_assert(sizeof(BrickExtent) == 24 && offsetof(BrickExtent, flags) == 16);

/// Its data are `count` SyncRange; without one, all that the session has mapped for writing.
struct BrickSync {
  Header header;
  le32 device_id = 0;
  le32 count = 0;
  le32 flags = 0;
};
static_assert(sizeof(BrickSync) == 16);

struct SyncRange {
  le64 address = 0;  ///< id of the block plus offset
  le64 length = 0;   ///< bytes
};
static_assert(sizeof(SyncRange) == 16);

struct BrickRevokePath {
  Header header;
  le32 device_id = 0;
  Uuid path{};
};
static_assert(sizeof(BrickRevokePath) == 24 && offsetof(BrickRevokePath, path) == 8);

/// Errors: too_short, bad_type, bad_value (durability, kinds of keys, size of blocks), bad_count
/// (more free blocks than there are).
Result<BrickInfoResponse> decode_brick_info(ConstBytes bytes);

/// ALLOC or FREE. Errors: too_short, bad_type, bad_count (none, or beyond the last address),
/// bad_value (an id inside a block, unknown flags).
Result<BrickRange> decode_brick_range(ConstBytes bytes, MessageType type);

/// Errors: as decode_brick_range(), and bad_count for more than kMaxBrickMaps; bad_value for a map
/// that allows nothing, or without a number.
Result<BrickMap> decode_brick_map(ConstBytes bytes);

/// Errors: as decode_brick_range().
Result<BrickUnmap> decode_brick_unmap(ConstBytes bytes);

/// Errors: too_short, bad_type, bad_value (unknown list).
Result<BrickList> decode_brick_list(ConstBytes bytes);

std::vector<std::byte> encode_brick_maps(std::span<const MapEntry> entries);

/// The maps that were asked for with `asked`, in its order. Bytes after the last are ignored.
///
/// Errors: too_short, bad_type, bad_count (another number of maps), bad_value (another block,
/// other rights).
Result<std::vector<MapEntry>> decode_brick_maps(ConstBytes bytes, const BrickMap& asked);

/// As many extents as fit into `capacity` bytes.
std::vector<std::byte> encode_brick_extents(std::span<const BrickExtent> extents,
                                            std::uint64_t total, std::size_t capacity);

struct BrickPage {
  std::uint64_t total = 0;
  std::vector<BrickExtent> extents;
};

/// Bytes after the last extent are ignored.
///
/// Errors: too_short, bad_type, bad_count, bad_value (extents that are empty, out of order, before
/// `first`, inside a block or beyond the last address, with unknown flags).
Result<BrickPage> decode_brick_extents(ConstBytes bytes, std::uint64_t first);

std::vector<std::byte> encode_sync_ranges(std::span<const SyncRange> ranges);

/// The data of a SYNC. Errors: bad_count (more than kMaxSyncRanges, or than there are bytes for),
/// bad_value (ranges that are empty or wrap).
Result<std::vector<SyncRange>> decode_sync_ranges(ConstBytes data, std::uint32_t count);

}  // namespace rnbd::wire
