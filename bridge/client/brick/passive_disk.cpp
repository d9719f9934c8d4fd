// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/passive_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace rnbd {
namespace {

using wire::IoOperation;

constexpr int kTwoSided = PassiveBrick::kTwoSided;

/// Splits a transfer at block borders. `one` tries each part one-sided; `other` performs the
/// refused parts two-sided.
template <class One, class Other>
int in_parts(const Transfer& whole, One one, Other other) {
  const std::uint64_t end = whole.offset + whole.length;
  std::uint64_t from = whole.offset;  // the start of the parts that go two-sided together
  for (std::uint64_t at = whole.offset; at < end;) {
    const std::uint64_t next = std::min(end, at + wire::kBrickBlock - at % wire::kBrickBlock);
    const int error = one(whole.part(at, next));
    if (error != 0 && error != kTwoSided) return error;
    if (error == 0 && from < at) {
      if (const int rest = other(whole.part(from, at))) return rest;
    }
    at = next;
    if (error == 0) from = at;
  }
  return from < end ? other(whole.part(from, end)) : 0;
}

}  // namespace

PassiveDisk::PassiveDisk(std::unique_ptr<RemoteDevice> device, std::shared_ptr<PassiveBrick> brick)
    : Disk{device->geometry(), device->read_only(), device->changes(), device.get(),
           Takes::any_bytes},
      device_{std::move(device)},
      brick_{std::move(brick)} {}

tl::expected<void, Failure> PassiveDisk::look_again(const Interrupt& interrupt) {
  auto looked = device_->look_again(interrupt);
  geometry_ = device_->geometry();
  return looked;
}

void PassiveDisk::grow_to(std::uint64_t size) {
  device_->grow_to(size);
  grow(geometry_, size);  // and nothing else: threads of the brick may read the rest
}

// ---- Reads and changes, block by block ---------------------------------------------------------

int PassiveDisk::perform(const Transfer& transfer, const Interrupt& interrupt) {
  const auto other = [&](const Transfer& part) { return two_sided(part, interrupt); };
  if (transfer.operation == IoOperation::read) {
    const auto one = [&](const Transfer& part) {
      return brick_->read(part.offset, {part.into, part.length}, interrupt);
    };
    return in_parts(transfer, one, other);
  }
  if (transfer.operation != IoOperation::write) return other(transfer);
  const auto one = [&](const Transfer& part) { return write_one_sided(part, interrupt); };
  return in_parts(transfer, one, other);
}

int PassiveDisk::two_sided(const Transfer& transfer, const Interrupt& interrupt) {
  if (int error = brick_->before_two_sided(transfer.offset, transfer.length, interrupt))
    return error;
  const int error = device_->run(transfer, interrupt);
  return transfer.changes() ? changed(error) : error;
}

int PassiveDisk::write_one_sided(const Transfer& part, const Interrupt& interrupt) {
  const MapCache::Pin pin = brick_->enter(part.offset, /*write=*/true);
  if (pin == nullptr) return kTwoSided;
  const std::uint64_t era = device_->era();
  const bool durable = part.fua && brick_->has_sync();
  int error = write_pinned(pin, part, durable, interrupt);
  brick_->leave(pin);
  if (error == 0 && durable) error = sync(part.offset, part.length, interrupt);
  // The write may have gone to the last server, after its losses were reported.
  if (error == 0 && device_->era() != era) return kTwoSided;
  return error == 0 || error == EINTR || error == EROFS ? error : kTwoSided;
}

/// As a change of whole blocks that is two-sided: no patch, and no other user's change, overlaps.
int PassiveDisk::write_pinned(const MapCache::Pin& pin, const Transfer& part, bool seen,
                              const Interrupt& interrupt) {
  Begun begun;
  if (!geometry().is_aligned(part.offset, part.length)) return kTwoSided;
  if (device_->admit(part, begun) != 0 || enter(part, begun) != 0) return kTwoSided;
  // A change that somebody gave up may land later; two-sided ones wait for its end.
  int error = kTwoSided;
  if (!device_->handle().unresolved->writes())
    error = brick_->write(pin, part.offset, {part.from, part.length}, seen, interrupt);
  if (error == 0) device_->handle().unflushed.note();
  leave(begun);
  return error;
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

int PassiveDisk::extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                         std::vector<wire::Extent>& extents, const Interrupt& interrupt) {
  return device_->extents(offset, length, max_extents, extents, interrupt);
}

int PassiveDisk::cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) {
  return device_->cache(offset, length, interrupt);
}

/// A flush may have to settle one-sided writes first.
int PassiveDisk::admit(const Transfer& transfer, Begun& begun) {
  if (transfer.operation == IoOperation::flush) return EAGAIN;
  if (brick_->concerns(transfer.offset, transfer.length)) return EAGAIN;
  return device_->admit(transfer, begun);
}

int PassiveDisk::ended(const Transfer& transfer, const Begun& /*begun*/, int error) {
  return transfer.changes() ? changed(error) : error;
}

}  // namespace rnbd
