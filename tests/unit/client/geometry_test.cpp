// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/geometry.hpp"

#include <doctest/doctest.h>

namespace geometry_test {

using rnbd::DeviceGeometry;
using rnbd::GeometryOptions;
using rnbd::make_geometry;
using rnbd::Use;
namespace wire = rnbd::wire;

namespace {

constexpr rtrs::SessionLimits kLinux{.max_io_size = 126976, .queue_depth = 512, .features = 0};
constexpr rtrs::SessionLimits kOwn{
    .max_io_size = 131072, .queue_depth = 512, .features = rtrs::wire::kFeatureUserMessages};

wire::OpenResponse disk_of(std::uint64_t sectors) {
  wire::OpenResponse open;
  open.device_id = 3;
  open.sectors = sectors;
  open.max_write_zeroes_sectors = 0xFFFF'FFFF;
  open.max_discard_sectors = 2048;
  open.discard_granularity = 4096;
  open.physical_block_size = 4096;
  open.logical_block_size = 512;
  open.cache_policy = wire::kCacheFua | wire::kCacheWriteback;
  return open;
}

}  // namespace

TEST_CASE("a Linux server's device has the size of its sectors and no extension") {
  auto geometry = make_geometry(disk_of(100), nullptr, kLinux, {});
  REQUIRE(geometry);
  CHECK(geometry->device_id == 3);
  CHECK(geometry->size == 51200);
  CHECK(geometry->padded_size == 51200);
  CHECK(geometry->max_io == 126976);
  CHECK(geometry->physical_block == 4096);
  CHECK(geometry->native_fua);
  CHECK(geometry->flush_covers_all);
  CHECK_FALSE(geometry->own_peer);
  CHECK_FALSE(geometry->extents);
  CHECK_FALSE(geometry->cache);
  CHECK_FALSE(geometry->fast_zero);
}

TEST_CASE("discard and zeroing of a Linux server are used only when the user says so") {
  CHECK(make_geometry(disk_of(100), nullptr, kLinux, {})->max_discard == 0);
  CHECK(make_geometry(disk_of(100), nullptr, kLinux, {})->max_write_zeroes == 0);
  const GeometryOptions trusting{.discard = Use::always, .write_zeroes = Use::always};
  CHECK(make_geometry(disk_of(100), nullptr, kLinux, trusting)->max_discard == 1048576);
  CHECK(make_geometry(disk_of(100), nullptr, kLinux, trusting)->max_write_zeroes == 0xFFFF'FE00);
  const wire::DeviceInfoResponse info;
  CHECK(make_geometry(disk_of(100), &info, kOwn, {})->max_discard == 1048576);
  const GeometryOptions none{.discard = Use::never, .write_zeroes = Use::never};
  CHECK(make_geometry(disk_of(100), &info, kOwn, none)->max_discard == 0);
  CHECK(make_geometry(disk_of(100), &info, kOwn, none)->max_write_zeroes == 0);
}

TEST_CASE("the extension's exact size may only cut into the last sector") {
  wire::DeviceInfoResponse info;
  auto size_with = [&](std::uint64_t exact) {
    info.size = exact;
    return make_geometry(disk_of(100), &info, kOwn, {})->size;
  };
  CHECK(size_with(51200) == 51200);
  CHECK(size_with(51199) == 51199);
  CHECK(size_with(50689) == 50689);
  CHECK(size_with(50688) == 51200);
  CHECK(size_with(51201) == 51200);
  CHECK(size_with(0) == 51200);
}

TEST_CASE("the extension's flags say what the device can do") {
  wire::DeviceInfoResponse info;
  info.size = 51200;
  info.flags = wire::kDeviceReadOnly | wire::kDeviceRotational | wire::kDeviceExtents |
               wire::kDeviceFastZero | wire::kDeviceCache;
  info.preferred_block = 65536;
  auto geometry = make_geometry(disk_of(100), &info, kOwn, {});
  CHECK(geometry->read_only);
  CHECK(geometry->rotational);
  CHECK(geometry->extents);
  CHECK(geometry->fast_zero);
  CHECK(geometry->cache);
  CHECK_FALSE(geometry->flush_covers_all);
  CHECK(geometry->preferred_block == 65536);
  auto open = disk_of(100);
  open.max_write_zeroes_sectors = 0;
  CHECK_FALSE(make_geometry(open, &info, kOwn, {})->fast_zero);
}

TEST_CASE("flush and FUA are there unless an rnbdkit server says that they are not") {
  const auto linux_device = make_geometry(disk_of(100), nullptr, kLinux, {});
  CHECK((linux_device->can_flush && linux_device->can_fua));
  wire::DeviceInfoResponse info;
  const auto told = [&](std::uint32_t flags) {
    info.flags = flags;
    return *make_geometry(disk_of(100), &info, kOwn, {});
  };
  CHECK((told(0).can_flush && told(0).can_fua && told(0).native_fua));
  CHECK_FALSE(told(wire::kDeviceNoFlush).can_flush);
  CHECK(told(wire::kDeviceNoFlush).can_fua);
  CHECK_FALSE(told(wire::kDeviceNoFlush | wire::kDeviceNoFua).can_fua);
  CHECK_FALSE(told(wire::kDeviceNoFlush | wire::kDeviceNoFua).native_fua);
}

TEST_CASE("sizes that no device can have are refused") {
  for (std::uint16_t block : {0, 1, 256, 513, 1000, 3 * 4096}) {
    auto open = disk_of(100);
    open.logical_block_size = block;
    CHECK_FALSE(make_geometry(open, nullptr, kLinux, {}));
  }
  CHECK_FALSE(make_geometry(disk_of(UINT64_MAX), nullptr, kLinux, {}));
  CHECK_FALSE(make_geometry(disk_of(std::uint64_t{1} << 54), nullptr, kLinux, {}));
  auto open = disk_of(100);
  open.logical_block_size = 4096;
  CHECK_FALSE(make_geometry(open, nullptr, {.max_io_size = 2048}, {}));
  CHECK(make_geometry(open, nullptr, {.max_io_size = 10000}, {})->max_io == 8192);
  CHECK(make_geometry(disk_of(0), nullptr, kLinux, {})->size == 0);
}

TEST_CASE("a nonsensical physical block size is replaced by the logical one") {
  auto open = disk_of(100);
  open.physical_block_size = 1000;
  CHECK(make_geometry(open, nullptr, kLinux, {})->physical_block == 512);
  open.physical_block_size = 512;
  open.logical_block_size = 4096;
  CHECK(make_geometry(open, nullptr, kLinux, {})->physical_block == 4096);
}

TEST_CASE("a device grows, and never shrinks; an end inside a block stays where it is") {
  DeviceGeometry geometry;
  geometry.block = 4096;
  geometry.size = geometry.padded_size = 8192;
  for (const std::uint64_t no_growth : {std::uint64_t{0}, std::uint64_t{8191}, UINT64_MAX}) {
    grow(geometry, no_growth);
    CHECK(geometry.size == 8192);
    CHECK(geometry.padded_size == 8192);
  }
  grow(geometry, 12288);
  CHECK(geometry.size == 12288);
  CHECK(geometry.padded_size == 12288);
  grow(geometry, 13000);
  CHECK(geometry.size == 13000);
  CHECK(geometry.padded_size == 13312);
  grow(geometry, 16384);
  CHECK(geometry.size == 13000);
}

TEST_CASE("ranges are aligned at blocks, and at the end of the device") {
  DeviceGeometry geometry;
  geometry.block = 4096;
  geometry.padded_size = 8192 + 512;
  CHECK(geometry.is_aligned(0, 8192));
  CHECK(geometry.is_aligned(4096, 4096 + 512));
  CHECK_FALSE(geometry.is_aligned(512, 3584));
  CHECK_FALSE(geometry.is_aligned(0, 512));
  CHECK(geometry.round_up(4097) == 8192);
  CHECK(geometry.round_up(8193) == 8704);
  CHECK(geometry.round_down(8191) == 4096);
}

}  // namespace geometry_test
