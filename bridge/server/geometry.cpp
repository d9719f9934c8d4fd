// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/geometry.hpp"

#include <algorithm>
#include <bit>

namespace rnbd {
namespace {

/// The block size fields of OPEN_RSP have 16 bits and hold powers of two.
constexpr std::uint32_t kMaxBlock = 32768;

/// Length fields of I/O have 32 bits.
std::uint32_t max_range_sectors(std::uint32_t logical_block) {
  return (UINT32_MAX & ~(logical_block - 1)) / wire::kSectorSize;
}

std::uint64_t sectors_of(std::uint64_t size) {
  return (size + wire::kSectorSize - 1) / wire::kSectorSize;
}

/// The number that kernel servers give; clients use the limit of their transport.
constexpr std::uint16_t kMaxSegments = 128;

}  // namespace

tl::expected<Geometry, std::string> geometry_of(const BackendInfo& info, bool read_only) {
  const std::uint32_t logical = std::max(info.logical_block, wire::kSectorSize);
  if (!std::has_single_bit(logical) || logical > kMaxBlock) {
    return tl::unexpected("its block size of " + std::to_string(info.logical_block) +
                          " bytes does not fit RNBD; use storage whose block size is a power of "
                          "two up to 32768");
  }
  if (info.size > UINT64_MAX - wire::kSectorSize)
    return tl::unexpected("its size of " + std::to_string(info.size) +
                          " bytes cannot be told in sectors; export something smaller");
  std::uint32_t physical = std::clamp(info.physical_block, logical, kMaxBlock);
  if (!std::has_single_bit(physical)) physical = logical;

  Geometry geometry;
  geometry.size = info.size;
  geometry.sectors = sectors_of(info.size);
  geometry.logical_block = logical;
  geometry.physical_block = physical;
  geometry.read_only = read_only || info.read_only;
  geometry.rotational = info.rotational;
  geometry.can_discard = info.can_discard && !geometry.read_only;
  geometry.can_write_zeroes = info.can_write_zeroes && !geometry.read_only;
  geometry.can_fast_zero = info.can_fast_zero && geometry.can_write_zeroes;
  geometry.can_extents = info.can_extents;
  geometry.can_cache = info.can_cache;
  geometry.can_flush = info.can_flush;
  geometry.queues_share = info.queues_share;
  geometry.can_fua = info.can_fua;
  geometry.volatile_cache = info.volatile_cache;
  geometry.uuid = info.uuid;
  if (geometry.can_discard)
    geometry.discard_granularity = std::max(info.discard_granularity, logical);
  return geometry;
}

void grow(Geometry& geometry, std::uint64_t size) {
  if (size <= geometry.size) return;
  geometry.size = size;
  geometry.sectors = sectors_of(size);
}

Geometry cut(Geometry geometry, std::uint64_t size) {
  geometry.size = size;
  geometry.sectors = sectors_of(size);
  return geometry;
}

bool fit_range(const Geometry& geometry, std::uint64_t offset, std::uint64_t& length) {
  if (length == 0 || offset >= geometry.size || length > geometry.end() - offset) return false;
  length = std::min(length, geometry.size - offset);
  return true;
}

wire::OpenResponse open_response(const Geometry& geometry, std::uint32_t device_id, bool writable,
                                 std::uint32_t max_io_size) {
  wire::OpenResponse response;
  response.header = wire::header_of(wire::MessageType::open_response);
  response.device_id = device_id;
  response.sectors = geometry.sectors;
  response.max_hw_sectors = max_io_size / wire::kSectorSize;
  const std::uint32_t range = max_range_sectors(geometry.logical_block);
  if (writable && geometry.can_write_zeroes) response.max_write_zeroes_sectors = range;
  if (writable && geometry.can_discard) {
    response.max_discard_sectors = range;
    response.discard_granularity = geometry.discard_granularity;
  }
  response.physical_block_size = static_cast<std::uint16_t>(geometry.physical_block);
  response.logical_block_size = static_cast<std::uint16_t>(geometry.logical_block);
  response.max_segments = kMaxSegments;
  response.rotational = geometry.rotational ? 1 : 0;
  // FUA is done by a flush if need be. Without a flush Linux's clients must not know of a cache:
  // they would fail over each flush that is refused.
  const bool flushed = geometry.volatile_cache && geometry.can_flush;
  response.cache_policy = flushed ? std::uint8_t{wire::kCacheFua | wire::kCacheWriteback} : 0;
  return response;
}

wire::DeviceInfoResponse device_info_response(const Geometry& geometry, std::uint32_t device_id) {
  wire::DeviceInfoResponse response;
  response.header = wire::header_of(wire::MessageType::device_info_response);
  response.device_id = device_id;
  response.size = geometry.size;
  response.export_uuid = geometry.uuid;
  std::uint32_t flags = 0;
  if (geometry.queues_share) flags |= wire::kDeviceMultiWriter;
  if (!geometry.can_flush) flags |= wire::kDeviceNoFlush;
  if (!geometry.honours_fua()) flags |= wire::kDeviceNoFua;
  if (geometry.read_only) flags |= wire::kDeviceReadOnly;
  if (geometry.rotational) flags |= wire::kDeviceRotational;
  if (geometry.can_extents) flags |= wire::kDeviceExtents;
  if (geometry.can_fast_zero) flags |= wire::kDeviceFastZero;
  if (geometry.can_cache) flags |= wire::kDeviceCache;
  response.flags = flags;
  response.preferred_block = geometry.physical_block;
  return response;
}

}  // namespace rnbd
