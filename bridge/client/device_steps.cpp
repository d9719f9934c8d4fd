// SPDX-License-Identifier: BSD-3-Clause
// A device in the hands of an event loop: the steps before a transfer and after it, without
// waiting.
#include <cerrno>
#include <cstdint>

#include "bridge/client/block_parts.hpp"
#include "bridge/client/remote_device.hpp"

namespace rnbd {
namespace {

using wire::IoOperation;

bool changes(const Transfer& transfer) {
  return transfer.operation != IoOperation::read && transfer.operation != IoOperation::flush;
}

}  // namespace

int RemoteDevice::begin(Transfer& transfer, Begun& begun) {
  begun = {};
  if (changes(transfer)) return begin_change(transfer, begun);
  if (transfer.operation == IoOperation::flush) {
    begun.flush = mapping_->handle.unflushed.begin_flush();
    return 0;
  }
  if (!inside(transfer.offset, transfer.length)) return EINVAL;
  return geometry().is_aligned(transfer.offset, transfer.length) ? 0 : EAGAIN;
}

int RemoteDevice::begin_change(Transfer& transfer, Begun& begun) {
  if (int error = check_change(transfer.offset, transfer.length)) return error;
  if (transfer.operation == IoOperation::discard) {
    if (geometry().max_discard == 0) return EOPNOTSUPP;
    const BlockParts parts = whole_blocks_at_end(geometry(), transfer.offset, transfer.length);
    transfer.offset = parts.middle_end > parts.head_end ? parts.head_end : 0;
    transfer.length = parts.middle_end - parts.head_end;
  } else {
    if (transfer.fast && !geometry().fast_zero) return EOPNOTSUPP;
    if (!geometry().is_aligned(transfer.offset, transfer.length)) return EAGAIN;
  }
  if (!may_change_.load(std::memory_order_relaxed)) return EAGAIN;
  if (mapping_->in_doubt.load(std::memory_order_relaxed)) return EIO;
  begun.place =
      mapping_->changes.try_enter(this, transfer.offset, transfer.offset + transfer.length);
  return begun.place ? 0 : EAGAIN;
}

int RemoteDevice::end(const Transfer& transfer, const Begun& begun, int error) {
  if (begun.place) mapping_->changes.leave(*begun.place);
  if (transfer.operation == IoOperation::write_zeroes && error == EOPNOTSUPP && !transfer.fast) {
    return EAGAIN;
  }
  if (error == EAGAIN) error = EIO;  // the server's own must not have it done once more
  if (transfer.operation != IoOperation::flush) return error;
  return mapping_->handle.unflushed.end_flush(begun.flush, error, losses_told_);
}

}  // namespace rnbd
