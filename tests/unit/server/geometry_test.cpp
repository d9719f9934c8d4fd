// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/geometry.hpp"

#include <doctest/doctest.h>

namespace geometry_test {

using namespace rnbd;

namespace {

BackendInfo plain(std::uint64_t size) {
  BackendInfo info;
  info.size = size;
  info.can_discard = info.can_write_zeroes = true;
  return info;
}

}  // namespace

TEST_CASE("geometry: a size inside a sector rounds up to whole sectors") {
  CHECK(geometry_of(plain(512), false)->sectors == 1);
  CHECK(geometry_of(plain(513), false)->sectors == 2);
  CHECK(geometry_of(plain(1), false)->sectors == 1);
  CHECK(geometry_of(plain(1), false)->end() == 512);
  CHECK(geometry_of(plain(1), false)->size == 1);
}

TEST_CASE("geometry: storage that clients could not use is refused with a reason") {
  BackendInfo info = plain(1 << 20);
  info.logical_block = 65536;
  CHECK(geometry_of(info, false).error().find("65536") != std::string::npos);
  info.logical_block = 1000;
  CHECK_FALSE(geometry_of(info, false).has_value());
  CHECK_FALSE(geometry_of(plain(UINT64_MAX), false).has_value());
}

TEST_CASE("geometry: block sizes always become powers of two that fit the answer") {
  BackendInfo info = plain(1 << 20);
  info.logical_block = 1;
  info.physical_block = 1 << 20;
  const auto geometry = geometry_of(info, false);
  CHECK(geometry->logical_block == 512);
  CHECK(geometry->physical_block == 32768);
  info.physical_block = 3000;
  CHECK(geometry_of(info, false)->physical_block == 512);
  info.logical_block = 4096;
  info.physical_block = 512;
  CHECK(geometry_of(info, false)->physical_block == 4096);
}

TEST_CASE("geometry: a read-only export offers neither discard nor zeroing") {
  const auto geometry = geometry_of(plain(1 << 20), true);
  CHECK(geometry->read_only);
  CHECK_FALSE(geometry->can_discard);
  CHECK_FALSE(geometry->can_write_zeroes);
}

TEST_CASE("open response: says what the device is and can do") {
  BackendInfo info = plain(1000);
  info.discard_granularity = 8192;
  info.rotational = true;
  const auto response = open_response(*geometry_of(info, false), 7, true, 262144);
  CHECK(response.header.type == 3);
  CHECK(response.device_id == 7);
  CHECK(response.sectors == 2);
  CHECK(response.max_hw_sectors == 512);
  CHECK(response.max_discard_sectors == 8388607);
  CHECK(response.max_write_zeroes_sectors == 8388607);
  CHECK(response.discard_granularity == 8192);
  CHECK(response.logical_block_size == 512);
  CHECK(response.physical_block_size == 4096);
  CHECK(response.secure_discard == 0);
  CHECK(response.rotational == 1);
  CHECK(response.cache_policy == (wire::kCacheFua | wire::kCacheWriteback));
}

TEST_CASE("open response: the largest discard is a multiple of the logical block") {
  BackendInfo info = plain(1 << 20);
  info.logical_block = 4096;
  const auto response = open_response(*geometry_of(info, false), 0, true, 4096);
  CHECK(response.max_discard_sectors % 8 == 0);
  CHECK(std::uint64_t{response.max_discard_sectors} * 512 <= UINT32_MAX);
}

TEST_CASE("open response: a read-only mapping is offered no discard and no zeroing") {
  const auto response = open_response(*geometry_of(plain(1 << 20), false), 0, false, 4096);
  CHECK(response.max_discard_sectors == 0);
  CHECK(response.max_write_zeroes_sectors == 0);
}

TEST_CASE("open response: storage without a volatile cache asks for no flushes") {
  BackendInfo info = plain(1 << 20);
  info.volatile_cache = false;
  CHECK(open_response(*geometry_of(info, false), 0, true, 4096).cache_policy == 0);
}

TEST_CASE("open response: storage that cannot be flushed asks Linux's clients for no flushes") {
  BackendInfo info = plain(1 << 20);
  info.can_flush = false;
  CHECK(open_response(*geometry_of(info, false), 0, true, 4096).cache_policy == 0);
}

TEST_CASE("device info: says what the storage has not, flush and FUA apart") {
  const auto flags = [](bool flush, bool fua, bool share) {
    BackendInfo info = plain(1 << 20);
    info.can_flush = flush;
    info.can_fua = fua;
    info.queues_share = share;
    return std::uint32_t{device_info_response(*geometry_of(info, false), 0).flags};
  };
  CHECK(flags(true, true, true) == wire::kDeviceMultiWriter);
  CHECK(flags(true, false, true) == wire::kDeviceMultiWriter);
  CHECK(flags(false, true, false) == wire::kDeviceNoFlush);
  CHECK(flags(false, false, false) == (wire::kDeviceNoFlush | wire::kDeviceNoFua));
}

TEST_CASE("device info: tells the exact size and each ability apart") {
  BackendInfo info = plain(1000);
  info.uuid = {1, 2, 3};
  auto response = device_info_response(*geometry_of(info, false), 3);
  CHECK(response.size == 1000);
  CHECK(response.device_id == 3);
  CHECK(response.export_uuid == info.uuid);
  CHECK(response.flags == wire::kDeviceMultiWriter);
  CHECK(response.preferred_block == 4096);
  info.can_extents = true;
  info.can_fast_zero = true;
  info.can_cache = true;
  info.rotational = true;
  response = device_info_response(*geometry_of(info, false), 3);
  CHECK(response.flags == (wire::kDeviceMultiWriter | wire::kDeviceExtents | wire::kDeviceFastZero |
                           wire::kDeviceCache | wire::kDeviceRotational));
  response = device_info_response(*geometry_of(info, true), 3);
  CHECK((response.flags & wire::kDeviceReadOnly) != 0);
  CHECK((response.flags & wire::kDeviceFastZero) == 0);
}

}  // namespace geometry_test
