// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_device.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "bridge/client/block_parts.hpp"

namespace rnbd::mirror {
namespace {

using wire::IoOperation;

bool changes(const Transfer& transfer) {
  return transfer.operation != IoOperation::read && transfer.operation != IoOperation::flush;
}

}  // namespace

MirrorDevice::MirrorDevice(std::shared_ptr<Mirror> mirror, std::string name, bool read_only)
    : Disk{mirror->geometry(), read_only}, mirror_{std::move(mirror)}, name_{std::move(name)} {}

std::shared_ptr<LaneSource> MirrorDevice::lane_source() { return mirror_; }

bool MirrorDevice::inside(std::uint64_t offset, std::uint64_t length) const {
  return offset <= geometry().size && length <= geometry().size - offset;
}

int MirrorDevice::read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt) {
  if (!inside(offset, data.size())) return EINVAL;
  if (data.empty()) return 0;
  Transfer transfer{.offset = offset, .length = data.size(), .into = data.data()};
  if (geometry().is_aligned(offset, data.size())) return mirror_->run(transfer, interrupt);
  transfer.offset = geometry().round_down(offset);
  std::vector<std::byte> blocks(geometry().round_up(offset + data.size()) - transfer.offset);
  transfer.length = blocks.size();
  transfer.into = blocks.data();
  const int error = mirror_->run(transfer, interrupt);
  if (error == 0) std::memcpy(data.data(), blocks.data() + (offset - transfer.offset), data.size());
  return error;
}

int MirrorDevice::write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                        const Interrupt& interrupt) {
  return change({.operation = IoOperation::write,
                 .offset = offset,
                 .length = data.size(),
                 .from = data.data(),
                 .fua = fua},
                interrupt);
}

int MirrorDevice::write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                               const Interrupt& interrupt) {
  if (options.fast) return EOPNOTSUPP;
  return change({.operation = geometry().max_write_zeroes != 0 ? IoOperation::write_zeroes
                                                               : IoOperation::write,
                 .offset = offset,
                 .length = length,
                 .fua = options.fua,
                 .no_unmap = !options.may_unmap},
                interrupt);
}

/// A write, of zeroes without `from`; its ends may lie inside blocks.
int MirrorDevice::change(const Transfer& whole, const Interrupt& interrupt) {
  if (read_only()) return EROFS;
  if (!inside(whole.offset, whole.length)) return EINVAL;
  if (whole.length == 0) return 0;
  const std::uint64_t end = whole.offset + whole.length;
  if (geometry().is_aligned(whole.offset, whole.length)) return change_blocks(whole, interrupt);
  const BlockParts parts = cut_at_blocks(geometry(), whole.offset, end);
  const auto part = [&](std::uint64_t from, std::uint64_t to) {
    Transfer piece = whole;
    piece.offset = from;
    piece.length = to - from;
    if (whole.from != nullptr) piece.from = whole.from + (from - whole.offset);
    return piece;
  };
  if (int error = patch(part(whole.offset, parts.head_end), interrupt)) return error;
  if (int error = change_blocks(part(parts.head_end, parts.middle_end), interrupt)) return error;
  return patch(part(parts.middle_end, end), interrupt);
}

int MirrorDevice::change_blocks(const Transfer& transfer, const Interrupt& interrupt) {
  if (transfer.length == 0) return 0;
  const std::uint64_t end = transfer.offset + transfer.length;
  const auto place = mirror_->changes().enter(mirror_.get(), transfer.offset, end, interrupt);
  if (!place) return EINTR;
  const int error = mirror_->run(transfer, interrupt);
  mirror_->changes().leave(*place);
  return error;
}

/// Changes bytes inside one block.
int MirrorDevice::patch(const Transfer& part, const Interrupt& interrupt) {
  if (part.length == 0) return 0;
  const std::uint64_t start = geometry().round_down(part.offset);
  std::vector<std::byte> block(geometry().round_up(part.offset + 1) - start);
  Transfer transfer{.offset = start, .length = block.size(), .into = block.data()};
  const PatchUnderWay alone{mirror_->changes(), start, start + block.size(), interrupt};
  if (!alone.entered()) return EINTR;
  if (int error = mirror_->run(transfer, interrupt)) return error;
  std::byte* const changed = block.data() + (part.offset - start);
  if (part.from != nullptr)
    std::memcpy(changed, part.from, part.length);
  else
    std::memset(changed, 0, part.length);
  transfer.operation = IoOperation::write;
  transfer.into = nullptr;
  transfer.from = block.data();
  transfer.fua = part.fua;
  return mirror_->run(transfer, interrupt);
}

int MirrorDevice::flush(const Interrupt& interrupt) {
  return mirror_->run({.operation = IoOperation::flush}, interrupt);
}

/// After it, members might show different bytes there.
int MirrorDevice::discard(std::uint64_t /*offset*/, std::uint64_t /*length*/, bool /*fua*/,
                          const Interrupt& /*interrupt*/) {
  return EOPNOTSUPP;
}

int MirrorDevice::extents(std::uint64_t /*offset*/, std::uint64_t /*length*/,
                          std::size_t /*max_extents*/, std::vector<wire::Extent>& /*extents*/,
                          const Interrupt& /*interrupt*/) {
  return EOPNOTSUPP;
}

int MirrorDevice::cache(std::uint64_t /*offset*/, std::uint64_t /*length*/,
                        const Interrupt& /*interrupt*/) {
  return EOPNOTSUPP;
}

// ---- For event loops ----------------------------------------------------------------------------

/// As the calls above, which do all that these cannot: partial blocks, and waiting for a patch.
int MirrorDevice::begin(Transfer& transfer, Begun& begun) {
  begun = {};
  if (transfer.operation == IoOperation::flush) return 0;
  if (changes(transfer) && read_only()) return EROFS;
  if (!inside(transfer.offset, transfer.length)) return EINVAL;
  if (transfer.operation == IoOperation::discard || transfer.fast) return EOPNOTSUPP;
  if (!geometry().is_aligned(transfer.offset, transfer.length)) return EAGAIN;
  if (!changes(transfer)) return 0;
  if (transfer.operation == IoOperation::write_zeroes && geometry().max_write_zeroes == 0)
    transfer.operation = IoOperation::write;
  const std::uint64_t end = transfer.offset + transfer.length;
  begun.place = mirror_->changes().try_enter(mirror_.get(), transfer.offset, end);
  return begun.place ? 0 : EAGAIN;
}

int MirrorDevice::end(const Transfer& /*transfer*/, const Begun& begun, int error) {
  if (begun.place) mirror_->changes().leave(*begun.place);
  return error == EAGAIN ? EIO : error;  // a member's own must not have it done once more
}

}  // namespace rnbd::mirror
