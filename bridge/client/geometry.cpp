// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/geometry.hpp"

#include <algorithm>
#include <bit>

namespace rnbd {
namespace {

constexpr std::uint32_t kMaxBlock = 64 * 1024;
/// The last whole sector below 4 GiB: lengths on the wire have 32 bits.
constexpr std::uint64_t kMaxLength = 0xFFFF'FE00;
constexpr std::uint64_t kMaxSectors = INT64_MAX / wire::kSectorSize;

bool allowed(Use use, bool own_peer) {
  return use == Use::always || (use == Use::automatic && own_peer);
}

/// A limit in sectors as a number of bytes that is a multiple of the device's block.
std::uint64_t limit_of(std::uint32_t sectors, std::uint32_t block) {
  std::uint64_t bytes =
      std::min<std::uint64_t>(std::uint64_t{sectors} * wire::kSectorSize, kMaxLength);
  return bytes - bytes % block;
}

void add_info(DeviceGeometry& geometry, const wire::DeviceInfoResponse& info) {
  std::uint32_t flags = info.flags;
  // The exact size can only cut into the last sector.
  std::uint64_t size = info.size;
  if (size <= geometry.padded_size && geometry.padded_size - size < wire::kSectorSize) {
    geometry.size = size;
  }
  geometry.export_uuid = info.export_uuid;
  geometry.witness = witness_of(info);
  geometry.in_use = (flags & wire::kDeviceInUse) != 0;
  geometry.shrunk = (flags & wire::kDeviceShrunk) != 0;
  geometry.evicted = (flags & wire::kDeviceEvicted) != 0;
  geometry.read_only = (flags & wire::kDeviceReadOnly) != 0;
  geometry.rotational = geometry.rotational || (flags & wire::kDeviceRotational) != 0;
  geometry.extents = (flags & wire::kDeviceExtents) != 0;
  geometry.fast_zero = (flags & wire::kDeviceFastZero) != 0 && geometry.max_write_zeroes != 0;
  geometry.cache = (flags & wire::kDeviceCache) != 0;
  geometry.can_flush = (flags & wire::kDeviceNoFlush) == 0;
  geometry.can_fua = geometry.native_fua = (flags & wire::kDeviceNoFua) == 0;
  geometry.flush_covers_all = (flags & wire::kDeviceMultiWriter) != 0;
  if (std::has_single_bit(std::uint32_t{info.preferred_block})) {
    geometry.preferred_block = info.preferred_block;
  }
}

/// Compares as the server does. A sight is proof by itself. The writer's number depends on clients
/// that connect or leave at that moment, so it counts only without a sight.
bool same_sight(const Witness& one, const Witness& other) {
  if (one.sight != other.sight) return false;
  return one.sight != 0 || one.writer_serial == other.writer_serial;
}

}  // namespace

Witness witness_of(const wire::DeviceInfoResponse& info) {
  return {info.writer_serial, info.server_life, info.storage_life,
          info.sight,         info.generation,  info.found_generation};
}

bool knows_as_much(const Witness& seen, const Witness& claimed_on, const Witness& held) {
  return same_sight(seen, claimed_on) || same_sight(seen, held);
}

tl::expected<DeviceGeometry, std::string> make_geometry(const wire::OpenResponse& open,
                                                        const wire::DeviceInfoResponse* info,
                                                        const rtrs::SessionLimits& limits,
                                                        const GeometryOptions& options) {
  DeviceGeometry geometry;
  geometry.device_id = open.device_id;
  geometry.block = open.logical_block_size;
  if (!std::has_single_bit(geometry.block) || geometry.block < wire::kSectorSize ||
      geometry.block > kMaxBlock) {
    return tl::unexpected("a logical block size of " + std::to_string(geometry.block) +
                          " bytes (possible are powers of two from 512 to 65536)");
  }
  if (open.sectors > kMaxSectors) {
    return tl::unexpected("an impossible size of " + std::to_string(open.sectors.value()) +
                          " sectors");
  }
  geometry.padded_size = open.sectors * std::uint64_t{wire::kSectorSize};
  geometry.size = geometry.padded_size;
  geometry.max_io = limits.max_io_size - limits.max_io_size % geometry.block;
  if (geometry.max_io == 0) {
    return tl::unexpected("a logical block of " + std::to_string(geometry.block) +
                          " bytes, larger than its greatest request of " +
                          std::to_string(limits.max_io_size) + " bytes");
  }
  std::uint32_t physical = open.physical_block_size;
  geometry.physical_block =
      std::has_single_bit(physical) ? std::max(physical, geometry.block) : geometry.block;
  geometry.own_peer = (limits.features & rtrs::wire::kFeatureUserMessages) != 0;
  if (allowed(options.discard, geometry.own_peer)) {
    geometry.max_discard = limit_of(open.max_discard_sectors, geometry.block);
  }
  if (allowed(options.write_zeroes, geometry.own_peer)) {
    geometry.max_write_zeroes = limit_of(open.max_write_zeroes_sectors, geometry.block);
  }
  geometry.discard_granularity = open.discard_granularity;
  geometry.discard_alignment = open.discard_alignment;
  // rnbdkit servers honour FUA for any storage; without a volatile cache it costs nothing.
  geometry.native_fua = (open.cache_policy & wire::kCacheFua) != 0 || geometry.own_peer;
  geometry.volatile_cache = (open.cache_policy & wire::kCacheWriteback) != 0;
  geometry.rotational = open.rotational != 0;
  if (info != nullptr) add_info(geometry, *info);
  return geometry;
}

void grow(DeviceGeometry& geometry, std::uint64_t size) {
  const bool possible = size <= kMaxSectors * wire::kSectorSize;
  if (size <= geometry.size || !possible || geometry.size % geometry.block != 0) return;
  geometry.size = size;
  geometry.padded_size = (size + wire::kSectorSize - 1) / wire::kSectorSize * wire::kSectorSize;
}

}  // namespace rnbd
