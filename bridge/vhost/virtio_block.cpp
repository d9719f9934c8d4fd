// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/virtio_block.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace rnbd::vhost {
namespace {

using wire::IoOperation;
using wire::kSectorSize;

constexpr std::uint32_t kUnmap = 1;  ///< of RangeData::flags

std::uint32_t blocks(std::uint64_t bytes, std::uint32_t block, std::uint64_t most) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / block, most));
}

Judgement ends(BlockStatus status) { return {.request = std::nullopt, .status = status}; }

bool inside(std::uint64_t sector, std::uint64_t sectors, const Offer& offer) {
  const std::uint64_t capacity = offer.config.capacity;
  return sector <= capacity && sectors <= capacity - sector;
}

Judgement judge_data(const RequestHeader& header, std::uint64_t length, const Offer& offer) {
  if (length % kSectorSize != 0 || length > kMostData) return ends(BlockStatus::io_error);
  if (!inside(header.sector, length / kSectorSize, offer)) return ends(BlockStatus::io_error);
  return {.request = BlockRequest{.command = static_cast<BlockCommand>(header.type.value()),
                                  .offset = header.sector * kSectorSize,
                                  .length = length}};
}

Judgement judge_range(BlockCommand command, const RangeData& range, const Offer& offer) {
  const bool zeroes = command == BlockCommand::write_zeroes;
  const std::uint32_t known = zeroes ? kUnmap : 0;
  if ((range.flags & ~known) != 0) return ends(BlockStatus::unsupported);
  if (range.sectors > kMostRange || !inside(range.sector, range.sectors, offer))
    return ends(BlockStatus::io_error);
  return {.request = BlockRequest{.command = command,
                                  .offset = range.sector * kSectorSize,
                                  .length = std::uint64_t{range.sectors} * kSectorSize,
                                  .no_unmap = (range.flags & kUnmap) == 0}};
}

}  // namespace

Offer offer_of(const DeviceGeometry& geometry, bool read_only) {
  Offer offer;
  offer.features = kFeatureSizeMax | kFeatureSegMax | kFeatureBlockSize | kFeatureTopology |
                   kFeatureQueues | kFeatureIndirect | kFeatureEventIndex | kFeatureProtocol |
                   kFeatureVersion1;
  if (geometry.can_flush) offer.features |= kFeatureFlush;
  if (read_only) offer.features |= kFeatureReadOnly;
  // Zeroes are written, if there is nothing better.
  if (!read_only) offer.features |= kFeatureWriteZeroes;
  if (!read_only && geometry.max_discard != 0) offer.features |= kFeatureDiscard;

  BlockConfig& config = offer.config;
  // An end inside a block can be reached in sectors only.
  const std::uint32_t block = geometry.size % geometry.block == 0 ? geometry.block : kSectorSize;
  config.capacity = geometry.size / kSectorSize;
  config.size_max = kLargestSegment;
  config.seg_max = kMostSegments;
  config.blk_size = block;
  const std::uint32_t physical = std::max(geometry.physical_block / block, 1U);
  config.physical_block_exp = static_cast<std::uint8_t>(std::bit_width(physical) - 1);
  config.min_io_size =
      static_cast<std::uint16_t>(blocks(geometry.physical_block, block, UINT16_MAX));
  config.opt_io_size = blocks(geometry.preferred_block, block, UINT32_MAX);
  config.num_queues = kMaxQueues;  // qemu puts its own number there
  if ((offer.features & kFeatureDiscard) != 0) {
    config.max_discard_sectors = kMostRange;
    config.max_discard_seg = 1;
    config.discard_sector_alignment =
        std::max({geometry.discard_granularity, geometry.block, block}) / kSectorSize;
  }
  if ((offer.features & kFeatureWriteZeroes) != 0) {
    config.max_write_zeroes_sectors = kMostRange;
    config.max_write_zeroes_seg = 1;
    config.write_zeroes_may_unmap = 1;
  }
  return offer;
}

bool has_range(const RequestHeader& header, const RequestShape& shape) {
  const auto command = static_cast<BlockCommand>(header.type.value());
  return (command == BlockCommand::discard || command == BlockCommand::write_zeroes) &&
         shape.readable == sizeof(RangeData);
}

Judgement judge(const RequestHeader& header, const RequestShape& shape, const RangeData& range,
                const Offer& offer, std::uint64_t features) {
  const auto command = static_cast<BlockCommand>(header.type.value());
  const bool read_only = (offer.features & kFeatureReadOnly) != 0;
  switch (command) {
    case BlockCommand::read:
      return judge_data(header, shape.writable, offer);
    case BlockCommand::write:
      return read_only ? ends(BlockStatus::io_error) : judge_data(header, shape.readable, offer);
    case BlockCommand::flush:
      return {.request = BlockRequest{.command = command}};
    case BlockCommand::get_id:
      if (shape.writable < kIdSize) return ends(BlockStatus::io_error);
      return {.request = BlockRequest{.command = command, .length = kIdSize}};
    case BlockCommand::discard:
    case BlockCommand::write_zeroes: {
      const std::uint64_t needed =
          command == BlockCommand::discard ? kFeatureDiscard : kFeatureWriteZeroes;
      if ((features & needed) == 0) return ends(BlockStatus::unsupported);
      if (!has_range(header, shape)) return ends(BlockStatus::io_error);
      return judge_range(command, range, offer);
    }
  }
  return ends(BlockStatus::unsupported);
}

BlockStatus status_of(int error) {
  if (error == 0) return BlockStatus::ok;
  return error == EOPNOTSUPP ? BlockStatus::unsupported : BlockStatus::io_error;
}

bool wants_durable_writes(std::uint64_t features, const DeviceGeometry& geometry) {
  return (features & kFeatureFlush) == 0 && geometry.can_fua;
}

Transfer transfer_of(const BlockRequest& request, std::byte* data, bool durable) {
  Transfer transfer{.offset = request.offset, .length = request.length};
  switch (request.command) {
    case BlockCommand::read:
    case BlockCommand::get_id:
      transfer.operation = IoOperation::read;
      transfer.into = data;
      return transfer;
    case BlockCommand::flush:
      transfer.operation = IoOperation::flush;
      return transfer;
    case BlockCommand::write:
      transfer.operation = IoOperation::write;
      transfer.from = data;
      break;
    case BlockCommand::discard:
      transfer.operation = IoOperation::discard;
      break;
    case BlockCommand::write_zeroes:
      transfer.operation = IoOperation::write_zeroes;
      transfer.no_unmap = request.no_unmap;
      break;
  }
  transfer.fua = durable;
  return transfer;
}

}  // namespace rnbd::vhost
