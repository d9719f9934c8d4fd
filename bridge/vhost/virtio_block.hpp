// SPDX-License-Identifier: BSD-3-Clause
// A disk in the words of virtio's block device: features, configuration, requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bridge/client/geometry.hpp"
#include "bridge/client/transfer.hpp"
#include "bridge/vhost/messages.hpp"

namespace rnbd::vhost {

constexpr std::uint64_t feature(unsigned bit) { return std::uint64_t{1} << bit; }
inline constexpr std::uint64_t kFeatureSizeMax = feature(1);
inline constexpr std::uint64_t kFeatureSegMax = feature(2);
inline constexpr std::uint64_t kFeatureReadOnly = feature(5);
inline constexpr std::uint64_t kFeatureBlockSize = feature(6);
inline constexpr std::uint64_t kFeatureFlush = feature(9);
inline constexpr std::uint64_t kFeatureTopology = feature(10);
inline constexpr std::uint64_t kFeatureQueues = feature(12);
inline constexpr std::uint64_t kFeatureDiscard = feature(13);
inline constexpr std::uint64_t kFeatureWriteZeroes = feature(14);
inline constexpr std::uint64_t kFeatureIndirect = feature(28);
inline constexpr std::uint64_t kFeatureEventIndex = feature(29);
inline constexpr std::uint64_t kFeatureProtocol = feature(30);  ///< of vhost-user, not of virtio
inline constexpr std::uint64_t kFeatureVersion1 = feature(32);

/// Data segments of a request, with two descriptors more: guests without indirect ones have rings
/// of 128.
inline constexpr std::uint32_t kMostSegments = 126;
/// Units: bytes of a segment. A request has less than 32 MiB then, for which there are buffers.
inline constexpr std::uint32_t kLargestSegment = 256 * 1024;
inline constexpr std::uint64_t kMostData = std::uint64_t{kMostSegments} * kLargestSegment;
/// Units: sectors of a discard or zeroing. Others wait for it, so it has 1 GiB at most.
inline constexpr std::uint32_t kMostRange = (1U << 30) / wire::kSectorSize;

/// The configuration that a guest reads; the names are virtio's.
struct BlockConfig {
  le64 capacity;  ///< sectors of 512 bytes
  le32 size_max;
  le32 seg_max;
  std::array<std::uint8_t, 4> geometry{};
  le32 blk_size;
  std::uint8_t physical_block_exp = 0;
  std::uint8_t alignment_offset = 0;
  le16 min_io_size;  ///< logical blocks
  le32 opt_io_size;  ///< logical blocks
  std::uint8_t writeback = 0;
  std::uint8_t unused = 0;
  le16 num_queues;
  le32 max_discard_sectors;
  le32 max_discard_seg;
  le32 discard_sector_alignment;
  le32 max_write_zeroes_sectors;
  le32 max_write_zeroes_seg;
  std::uint8_t write_zeroes_may_unmap = 0;
  std::array<std::uint8_t, 3> unused1{};
};
static_assert(sizeof(BlockConfig) == 60);
static_assert(offsetof(BlockConfig, num_queues) == 34);
static_assert(offsetof(BlockConfig, max_write_zeroes_sectors) == 48);

/// A disk as it is offered to a guest.
struct Offer {
  std::uint64_t features = 0;
  BlockConfig config;
};
Offer offer_of(const DeviceGeometry& geometry, bool read_only);

/// A request's first bytes.
struct RequestHeader {
  le32 type;
  le32 priority;
  le64 sector;
};
static_assert(sizeof(RequestHeader) == 16);

/// The range of a discard or zeroing.
struct RangeData {
  le64 sector;
  le32 sectors;
  le32 flags;
};
static_assert(sizeof(RangeData) == 16);

enum class BlockCommand : std::uint32_t {
  read = 0,
  write = 1,
  flush = 4,
  get_id = 8,
  discard = 11,
  write_zeroes = 13,
};

enum class BlockStatus : std::uint8_t { ok = 0, io_error = 1, unsupported = 2 };

inline constexpr std::size_t kIdSize = 20;  ///< bytes

/// A request whose head has been judged.
struct BlockRequest {
  BlockCommand command{};
  std::uint64_t offset = 0;  ///< bytes
  std::uint64_t length = 0;  ///< bytes of data, or of the range
  bool no_unmap = false;     ///< write_zeroes: keep the blocks allocated
};

/// The buffers of a request.
struct RequestShape {
  std::uint64_t readable = 0;  ///< bytes behind the header
  std::uint64_t writable = 0;  ///< bytes before the status
};

/// The judgement: a request to carry out, or the status that it ends with.
struct Judgement {
  std::optional<BlockRequest> request;
  BlockStatus status = BlockStatus::ok;
};

/// Judges a request by the guest's features, which are among those of the offer. `range` is that of
/// a discard or zeroing.
Judgement judge(const RequestHeader& header, const RequestShape& shape, const RangeData& range,
                const Offer& offer, std::uint64_t features);
/// The request has such a range, with as many bytes as it should have.
bool has_range(const RequestHeader& header, const RequestShape& shape);

/// The status for an errno of the disk.
BlockStatus status_of(int error);
/// Guests that cannot flush are promised durable writes, where the storage has any.
bool wants_durable_writes(std::uint64_t features, const DeviceGeometry& geometry);
/// The request for a disk. `durable`: a change is durable when it has ended.
Transfer transfer_of(const BlockRequest& request, std::byte* data, bool durable);

}  // namespace rnbd::vhost
