// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/passive_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace rnbd {
namespace {

using wire::IoOperation;

constexpr int kTwoSided = PassiveBrick::kTwoSided;

/// Bytes from `offset` to the end of its block, `length` at most.
std::size_t part_of(std::uint64_t offset, std::size_t length) {
  return std::min<std::size_t>(length, wire::kBrickBlock - offset % wire::kBrickBlock);
}

/// Splits a range at block borders. `one` tries each part one-sided; `other` performs the refused
/// parts two-sided.
template <class Bytes, class One, class Other>
int in_parts(std::uint64_t offset, Bytes data, One one, Other other) {
  std::size_t from = 0;  // the start of the parts that go two-sided together
  for (std::size_t at = 0; at < data.size();) {
    const std::size_t size = part_of(offset + at, data.size() - at);
    const int error = one(offset + at, data.subspan(at, size));
    if (error == kTwoSided) {
      at += size;
      continue;
    }
    if (error != 0) return error;
    if (from < at) {
      if (const int rest = other(offset + from, data.subspan(from, at - from))) return rest;
    }
    at += size;
    from = at;
  }
  return from < data.size() ? other(offset + from, data.subspan(from)) : 0;
}

}  // namespace

tl::expected<void, Failure> PassiveDisk::look_again(const Interrupt& interrupt) {
  auto looked = device_->look_again(interrupt);
  geometry_ = device_->geometry();
  return looked;
}

void PassiveDisk::grow_to(std::uint64_t size) {
  device_->grow_to(size);
  geometry_ = device_->geometry();
}

bool PassiveDisk::inside(std::uint64_t offset, std::uint64_t length) const {
  return offset <= geometry().size && length <= geometry().size - offset;
}

// ---- Reads and writes, block by block ----------------------------------------------------------

int PassiveDisk::read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt) {
  if (!inside(offset, data.size())) return EINVAL;
  return in_parts(
      offset, data,
      [&](std::uint64_t at, rtrs::MutableBytes part) { return brick_->read(at, part, interrupt); },
      [&](std::uint64_t at, rtrs::MutableBytes part) {
        return read_two_sided(at, part, interrupt);
      });
}

int PassiveDisk::read_two_sided(std::uint64_t offset, rtrs::MutableBytes data,
                                const Interrupt& interrupt) {
  if (int error = brick_->before_two_sided(offset, data.size(), interrupt)) return error;
  return device_->read(offset, data, interrupt);
}

int PassiveDisk::write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                       const Interrupt& interrupt) {
  if (data.empty() || !inside(offset, data.size()))
    return device_->write(offset, data, fua, interrupt);
  return in_parts(
      offset, data,
      [&](std::uint64_t at, rtrs::ConstBytes part) {
        return write_one_sided(at, part, fua, interrupt);
      },
      [&](std::uint64_t at, rtrs::ConstBytes part) {
        return write_two_sided(at, part, fua, interrupt);
      });
}

int PassiveDisk::write_two_sided(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                                 const Interrupt& interrupt) {
  if (int error = brick_->before_two_sided(offset, data.size(), interrupt)) return error;
  return changed(device_->write(offset, data, fua, interrupt));
}

int PassiveDisk::write_one_sided(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                                 const Interrupt& interrupt) {
  const MapCache::Pin pin = brick_->enter(offset, /*write=*/true);
  if (pin == nullptr) return kTwoSided;
  const std::uint64_t era = device_->era();
  const bool durable = fua && brick_->has_sync();
  int error = write_pinned(pin, offset, data, durable, interrupt);
  brick_->leave(pin);
  if (error == 0 && durable) error = sync(offset, data.size(), interrupt);
  // The write may have gone to the last server, after its losses were reported.
  if (error == 0 && device_->era() != era) return kTwoSided;
  return error == 0 || error == EINTR || error == EROFS ? error : kTwoSided;
}

/// As a change of whole blocks that is two-sided: no patch, and no other user's change, overlaps.
int PassiveDisk::write_pinned(const MapCache::Pin& pin, std::uint64_t offset, rtrs::ConstBytes data,
                              bool seen, const Interrupt& interrupt) {
  Transfer transfer{.operation = IoOperation::write,
                    .offset = offset,
                    .length = data.size(),
                    .from = data.data()};
  Begun begun;
  if (const int error = device_->begin(transfer, begun)) return error == EAGAIN ? kTwoSided : error;
  // A change that somebody gave up may land later; two-sided ones wait for its end.
  int error = kTwoSided;
  if (!device_->handle().unresolved->writes()) {
    error = brick_->write(pin, offset, data, seen, interrupt);
  }
  if (error == 0) device_->handle().unflushed.note();
  const int ended = device_->end(transfer, begun, error == kTwoSided ? 0 : error);
  return error == kTwoSided ? kTwoSided : ended;
}

// ---- Everything else ---------------------------------------------------------------------------

/// Behind a two-sided change, whether it succeeded or not.
int PassiveDisk::changed(int error) {
  brick_->note_change();
  if (error == 0) brick_->allow_writes();
  return error;
}

/// The bytes, as one-sided writes left them.
int PassiveDisk::sync(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) {
  if (int error = brick_->before_two_sided(offset, length, interrupt)) return error;
  const wire::SyncRange range{offset, length};
  return brick_->sync({&range, 1}, interrupt);
}

/// When nothing but known bytes of mapped blocks has changed, the server need not write whole
/// blocks, as it must for a flush.
int PassiveDisk::flush(const Interrupt& interrupt) {
  FlushDebt::Debt debt;
  int error = brick_->begin_flush(debt, interrupt);
  if (error != 0) return error;
  error = brick_->settle(interrupt);
  const bool all = debt.unknown || !brick_->has_sync() || debt.ranges.size() > wire::kMaxSyncRanges;
  if (error == 0) error = all ? device_->flush(interrupt) : flush_ranges(debt, interrupt);
  brick_->end_flush(debt, error);
  return error;
}

int PassiveDisk::flush_ranges(const FlushDebt::Debt& debt, const Interrupt& interrupt) {
  std::vector<wire::SyncRange> ranges;
  for (const auto& [block, range] : debt.ranges)
    ranges.push_back({block * wire::kBrickBlock + range.begin, range.end - range.begin});
  Transfer transfer{.operation = IoOperation::flush};
  Begun begun;
  if (int error = device_->begin(transfer, begun)) return error;
  const int error = ranges.empty() ? 0 : brick_->sync(ranges, interrupt);
  return device_->end(transfer, begun, error);
}

int PassiveDisk::discard(std::uint64_t offset, std::uint64_t length, bool fua,
                         const Interrupt& interrupt) {
  if (inside(offset, length)) {
    if (int error = brick_->before_two_sided(offset, length, interrupt)) return error;
  }
  return changed(device_->discard(offset, length, fua, interrupt));
}

int PassiveDisk::write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                              const Interrupt& interrupt) {
  if (inside(offset, length)) {
    if (int error = brick_->before_two_sided(offset, length, interrupt)) return error;
  }
  return changed(device_->write_zeroes(offset, length, options, interrupt));
}

int PassiveDisk::extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                         std::vector<wire::Extent>& extents, const Interrupt& interrupt) {
  return device_->extents(offset, length, max_extents, extents, interrupt);
}

int PassiveDisk::cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) {
  return device_->cache(offset, length, interrupt);
}

/// A flush may have to settle one-sided writes first.
int PassiveDisk::begin(Transfer& transfer, Begun& begun) {
  if (transfer.operation == IoOperation::flush) return EAGAIN;
  if (!inside(transfer.offset, transfer.length)) return device_->begin(transfer, begun);
  if (brick_->concerns(transfer.offset, transfer.length)) return EAGAIN;
  return device_->begin(transfer, begun);
}

int PassiveDisk::end(const Transfer& transfer, const Begun& begun, int error) {
  const int ended = device_->end(transfer, begun, error);
  return transfer.operation == IoOperation::read ? ended : changed(ended);
}

}  // namespace rnbd
