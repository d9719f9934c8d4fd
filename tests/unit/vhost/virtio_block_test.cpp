// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/virtio_block.hpp"

#include <doctest/doctest.h>

#include <cerrno>

namespace virtio_block_test {

using namespace rnbd;
using namespace rnbd::vhost;

namespace {

constexpr std::uint64_t kMiB = 1U << 20;

DeviceGeometry disk() {
  DeviceGeometry geometry;
  geometry.size = geometry.padded_size = kMiB;
  geometry.physical_block = 4096;
  geometry.max_discard = kMiB;
  geometry.discard_granularity = 4096;
  return geometry;
}

RequestHeader header(BlockCommand command, std::uint64_t sector = 0) {
  return {static_cast<std::uint32_t>(command), 0U, sector};
}

Judgement judged(BlockCommand command, std::uint64_t sector, RequestShape shape,
                 RangeData range = {}, const Offer& offer = offer_of(disk(), false)) {
  return judge(header(command, sector), shape, range, offer, offer.features);
}

bool fails(const Judgement& judgement) {
  return !judgement.request && judgement.status == BlockStatus::io_error;
}
bool is_unsupported(const Judgement& judgement) {
  return !judgement.request && judgement.status == BlockStatus::unsupported;
}

}  // namespace

TEST_CASE("virtio block: the configuration tells the shape of the disk") {
  const Offer offer = offer_of(disk(), false);
  CHECK(offer.config.capacity == 2048);
  CHECK(offer.config.blk_size == 512);
  CHECK(offer.config.physical_block_exp == 3);
  CHECK(offer.config.min_io_size == 8);
  CHECK(offer.config.max_discard_sectors == kMostRange);
  CHECK(offer.config.discard_sector_alignment == 8);
  CHECK(offer.config.write_zeroes_may_unmap == 1);
  CHECK((offer.features & kFeatureFlush) != 0);
  CHECK((offer.features & kFeatureReadOnly) == 0);
  DeviceGeometry large = disk();
  large.block = 4096;
  CHECK(offer_of(large, false).config.blk_size == 4096);
  large.size -= 512;
  CHECK(offer_of(large, false).config.blk_size == 512);
  large.size = kMiB - 1;
  CHECK(offer_of(large, false).config.capacity == 2047);
}

TEST_CASE("virtio block: nobody is offered a change of what may only be read") {
  const Offer offer = offer_of(disk(), true);
  CHECK((offer.features & kFeatureReadOnly) != 0);
  CHECK((offer.features & (kFeatureDiscard | kFeatureWriteZeroes)) == 0);
  CHECK(fails(judged(BlockCommand::write, 0, {.readable = 512}, {}, offer)));
  CHECK(is_unsupported(judged(BlockCommand::discard, 0, {.readable = 16}, {}, offer)));
  CHECK(judged(BlockCommand::read, 0, {.writable = 512}, {}, offer).request.has_value());
}

TEST_CASE("virtio block: requests end inside the disk, in whole sectors") {
  const auto read = judged(BlockCommand::read, 2040, {.writable = 4096});
  REQUIRE(read.request.has_value());
  CHECK(read.request->offset == 2040 * 512);
  CHECK(read.request->length == 4096);
  CHECK(fails(judged(BlockCommand::read, 2041, {.writable = 4096})));
  CHECK(fails(judged(BlockCommand::read, 2049, {})));
  CHECK(fails(judged(BlockCommand::read, UINT64_MAX, {.writable = 512})));
  CHECK(fails(judged(BlockCommand::write, UINT64_MAX / 512 + 1, {.readable = 512})));
  CHECK(fails(judged(BlockCommand::read, 0, {.writable = 511})));
  CHECK(fails(judged(BlockCommand::write, 0, {.readable = 513})));
  DeviceGeometry huge = disk();
  huge.size = huge.padded_size = std::uint64_t{1} << 40;
  const Offer offer = offer_of(huge, false);
  CHECK(judged(BlockCommand::read, 0, {.writable = kMostData}, {}, offer).request.has_value());
  CHECK(fails(judged(BlockCommand::read, 0, {.writable = kMostData + 512}, {}, offer)));
}

TEST_CASE("virtio block: ranges are judged as data are, and have known flags only") {
  const RequestShape one{.readable = sizeof(RangeData)};
  const auto zeroes = judged(BlockCommand::write_zeroes, 0, one, {8U, 16U, 1U});
  REQUIRE(zeroes.request.has_value());
  CHECK(zeroes.request->offset == 8 * 512);
  CHECK(zeroes.request->length == 16 * 512);
  CHECK_FALSE(zeroes.request->no_unmap);
  CHECK(judged(BlockCommand::write_zeroes, 0, one, {8U, 16U, 0U}).request->no_unmap);
  CHECK(judged(BlockCommand::discard, 0, one, {0U, 2048U, 0U}).request.has_value());
  CHECK(is_unsupported(judged(BlockCommand::discard, 0, one, {0U, 8U, 1U})));
  CHECK(is_unsupported(judged(BlockCommand::write_zeroes, 0, one, {0U, 8U, 2U})));
  CHECK(fails(judged(BlockCommand::discard, 0, one, {2048U, 1U, 0U})));
  CHECK(fails(judged(BlockCommand::discard, 0, one, {UINT64_MAX, 1U, 0U})));
  CHECK(fails(judged(BlockCommand::discard, 0, {.readable = 32}, {0U, 8U, 0U})));
  CHECK(fails(judged(BlockCommand::discard, 0, {.readable = 15}, {0U, 8U, 0U})));
}

TEST_CASE("virtio block: unknown requests are not supported") {
  CHECK(is_unsupported(judged(static_cast<BlockCommand>(2), 0, {.writable = 512})));
  CHECK(is_unsupported(judged(static_cast<BlockCommand>(14), 0, {.readable = 16})));
  CHECK(is_unsupported(judged(static_cast<BlockCommand>(UINT32_MAX), 0, {})));
  CHECK(fails(judged(BlockCommand::get_id, 0, {.writable = 19})));
  CHECK(judged(BlockCommand::get_id, 0, {.writable = 20}).request->length == kIdSize);
}

TEST_CASE("virtio block: writes of a guest that cannot flush are durable, if they can be") {
  CHECK_FALSE(wants_durable_writes(kFeatureFlush, disk()));
  CHECK(wants_durable_writes(0, disk()));
  DeviceGeometry volatile_disk = disk();
  volatile_disk.can_flush = volatile_disk.can_fua = false;
  CHECK_FALSE(wants_durable_writes(0, volatile_disk));

  std::byte data{};
  const BlockRequest write{.command = BlockCommand::write, .length = 512};
  CHECK_FALSE(transfer_of(write, &data, false).fua);
  CHECK(transfer_of(write, &data, true).fua);
  CHECK(transfer_of(write, &data, true).from == &data);
  const BlockRequest zeroes{.command = BlockCommand::write_zeroes, .length = 512, .no_unmap = true};
  CHECK(transfer_of(zeroes, nullptr, true).fua);
  CHECK(transfer_of(zeroes, nullptr, true).no_unmap);
  const BlockRequest read{.command = BlockCommand::read, .length = 512};
  CHECK(transfer_of(read, &data, true).into == &data);
  CHECK_FALSE(transfer_of(read, &data, true).fua);
}

TEST_CASE("virtio block: errors have the status that virtio has for them") {
  CHECK(status_of(0) == BlockStatus::ok);
  CHECK(status_of(EOPNOTSUPP) == BlockStatus::unsupported);
  CHECK(status_of(EIO) == BlockStatus::io_error);
  CHECK(status_of(ENOSPC) == BlockStatus::io_error);
}

}  // namespace virtio_block_test
