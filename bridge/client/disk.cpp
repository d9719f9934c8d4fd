// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/disk.hpp"

#include <algorithm>
#include <cstring>

namespace rnbd {
namespace {

using rtrs::Interrupt;
using wire::IoOperation;

/// A range, cut where blocks begin. Any part may be empty.
struct BlockParts {
  std::uint64_t head_end;    ///< [offset, head_end) is a partial block
  std::uint64_t middle_end;  ///< [head_end, middle_end) is whole blocks
};                           ///< [middle_end, end) is a partial block

BlockParts cut_at_blocks(const DeviceGeometry& geometry, std::uint64_t offset, std::uint64_t end) {
  const std::uint64_t head_end = std::min(geometry.round_up(offset), end);
  const std::uint64_t middle_end = end == geometry.padded_size ? end : geometry.round_down(end);
  return {head_end, std::max(head_end, middle_end)};
}

bool is_refused_zeroing(const Transfer& transfer, int error) {
  return error == EOPNOTSUPP && transfer.operation == IoOperation::write_zeroes && !transfer.fast;
}

/// Zeroes written as data, which every server can.
Transfer as_data(Transfer zeroes) {
  zeroes.operation = IoOperation::write;
  zeroes.from = nullptr;
  return zeroes;
}

}  // namespace

// ---- Reads --------------------------------------------------------------------------------------

int Disk::read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt) {
  const Transfer whole{.offset = offset, .length = data.size(), .into = data.data()};
  if (!inside(whole.offset, whole.length)) return EINVAL;
  if (whole.length == 0) return 0;
  const bool fits = geometry_.is_aligned(whole.offset, whole.length) || any_bytes_;
  return fits ? perform(whole, interrupt) : read_parts(whole, interrupt);
}

int Disk::read_parts(const Transfer& whole, const Interrupt& interrupt) {
  const std::uint64_t end = whole.offset + whole.length;
  const BlockParts parts = cut_at_blocks(geometry_, whole.offset, end);
  if (int error = read_partial(whole.part(whole.offset, parts.head_end), interrupt)) return error;
  if (parts.middle_end > parts.head_end) {
    if (int error = perform(whole.part(parts.head_end, parts.middle_end), interrupt)) return error;
  }
  return read_partial(whole.part(parts.middle_end, end), interrupt);
}

/// Reads bytes inside one block.
int Disk::read_partial(const Transfer& part, const Interrupt& interrupt) {
  if (part.length == 0) return 0;
  const std::uint64_t start = geometry_.round_down(part.offset);
  std::vector<std::byte> block(geometry_.round_up(part.offset + 1) - start);
  const int error =
      perform({.offset = start, .length = block.size(), .into = block.data()}, interrupt);
  if (error == 0) std::memcpy(part.into, block.data() + (part.offset - start), part.length);
  return error;
}

// ---- Changes ------------------------------------------------------------------------------------

int Disk::write(std::uint64_t offset, rtrs::ConstBytes data, bool fua, const Interrupt& interrupt) {
  Transfer transfer{.operation = IoOperation::write,
                    .offset = offset,
                    .length = data.size(),
                    .from = data.data(),
                    .fua = fua};
  return change(transfer, interrupt);
}

int Disk::discard(std::uint64_t offset, std::uint64_t length, bool fua,
                  const Interrupt& interrupt) {
  Transfer transfer{
      .operation = IoOperation::discard, .offset = offset, .length = length, .fua = fua};
  return change(transfer, interrupt);
}

int Disk::write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                       const Interrupt& interrupt) {
  Transfer transfer{.operation = IoOperation::write_zeroes,
                    .offset = offset,
                    .length = length,
                    .fua = options.fua,
                    .no_unmap = !options.may_unmap,
                    .fast = options.fast};
  return change(transfer, interrupt);
}

int Disk::run(Transfer transfer, const Interrupt& interrupt) {
  if (transfer.changes()) return change(transfer, interrupt);
  return read(transfer.offset, {transfer.into, transfer.length}, interrupt);
}

/// Returns why the disk cannot be changed so, or 0.
int Disk::judge(const Transfer& change) const {
  if (read_only()) return EROFS;
  if (!inside(change.offset, change.length)) return EINVAL;
  if (change.operation == IoOperation::write) return 0;
  const bool discards = change.operation == IoOperation::discard;
  const bool able = discards ? geometry_.max_discard != 0 : !change.fast || geometry_.fast_zero;
  return able ? 0 : EOPNOTSUPP;
}

/// Leaves whole blocks of a discard, perhaps none; they may include the padding behind the end of
/// the disk. Has zeroes written that the server cannot write by itself.
void Disk::fit(Transfer& change) const {
  if (change.operation == IoOperation::write_zeroes && geometry_.max_write_zeroes == 0)
    change = as_data(change);
  if (change.operation != IoOperation::discard) return;
  const std::uint64_t end = change.offset + change.length;
  const BlockParts parts =
      cut_at_blocks(geometry_, change.offset, end == geometry_.size ? geometry_.padded_size : end);
  change.offset = parts.middle_end > parts.head_end ? parts.head_end : 0;
  change.length = parts.middle_end - parts.head_end;
}

int Disk::change(Transfer& whole, const Interrupt& interrupt) {
  if (int error = judge(whole)) return error;
  if (any_bytes_) return perform(whole, interrupt);
  fit(whole);
  if (whole.length == 0) return 0;
  if (!may_change_.load(std::memory_order_relaxed)) {
    if (int error = claim(interrupt)) return error;
  }
  if (geometry_.is_aligned(whole.offset, whole.length)) return change_blocks(whole, interrupt);
  for (;;) {
    const std::uint64_t before = era();
    const int error = change_parts(whole, interrupt);
    if (error != 0 || whole.fua || era() == before) return error;
  }
}

/// Changes whole blocks, which no patch and no other user's change overlaps.
int Disk::change_blocks(const Transfer& transfer, const Interrupt& interrupt) {
  const auto place =
      changes_.enter(user_, transfer.offset, transfer.offset + transfer.length, interrupt);
  if (!place) return EINTR;
  int error = perform(transfer, interrupt);
  if (is_refused_zeroing(transfer, error)) error = perform(as_data(transfer), interrupt);
  changes_.leave(*place);
  return error;
}

/// A write, of zeroes without `from`, or write_zeroes; its ends may lie inside blocks.
int Disk::change_parts(const Transfer& whole, const Interrupt& interrupt) {
  const std::uint64_t end = whole.offset + whole.length;
  const BlockParts parts = cut_at_blocks(geometry_, whole.offset, end);
  // Whole blocks first: a fast zeroing that cannot be fast must not have changed anything.
  if (parts.middle_end > parts.head_end) {
    const Transfer middle = whole.part(parts.head_end, parts.middle_end);
    if (int error = change_blocks(middle, interrupt)) return error;
  }
  if (int error = patch(whole.part(whole.offset, parts.head_end), interrupt)) return error;
  return patch(whole.part(parts.middle_end, end), interrupt);
}

/// Changes bytes inside one block; without `from` they become zeroes.
int Disk::patch(const Transfer& part, const Interrupt& interrupt) {
  if (part.length == 0) return 0;
  const std::uint64_t start = geometry_.round_down(part.offset);
  std::vector<std::byte> block(geometry_.round_up(part.offset + 1) - start);
  const PatchUnderWay alone{changes_, start, start + block.size(), interrupt};
  if (!alone.entered()) return EINTR;
  Transfer transfer{
      .offset = start, .length = block.size(), .into = block.data(), .for_change = true};
  if (int error = perform(transfer, interrupt)) return error;

  std::byte* const changed = block.data() + (part.offset - start);
  if (part.from != nullptr) {
    std::memcpy(changed, part.from, part.length);
  } else {
    std::memset(changed, 0, part.length);
  }
  transfer.operation = IoOperation::write;
  transfer.from = block.data();
  transfer.fua = part.fua;
  return perform(transfer, interrupt);
}

// ---- For event loops ----------------------------------------------------------------------------

int Disk::begin(Transfer& transfer, Begun& begun) {
  begun = {};
  const bool changes = transfer.changes();
  if (changes) {
    if (int error = judge(transfer)) return error;
    fit(transfer);
  }
  if (transfer.operation != IoOperation::flush) {
    if (!changes && !inside(transfer.offset, transfer.length)) return EINVAL;
    if (!geometry_.is_aligned(transfer.offset, transfer.length)) return EAGAIN;
  }
  if (int error = admit(transfer, begun)) return error;
  return changes ? enter(transfer, begun) : 0;
}

int Disk::end(const Transfer& transfer, const Begun& begun, int error) {
  leave(begun);
  if (error == EAGAIN) error = EIO;  // the server's own must not have it done once more
  return ended(transfer, begun, is_refused_zeroing(transfer, error) ? EAGAIN : error);
}

}  // namespace rnbd
