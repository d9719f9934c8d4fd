// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/transfer.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace rnbd {
namespace {

using wire::IoOperation;

/// The source of zeroes that have to be sent as data. Never written to; not const, so that it takes
/// no room in the program file.
constexpr std::size_t kZeroBytes = 128 * 1024;
alignas(4096) std::byte zero_bytes[kZeroBytes];

bool moves_data(IoOperation operation) {
  return operation == IoOperation::read || operation == IoOperation::write;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Operations without a substitute must be supported: nbdkit aborts when zeroes cannot be written.
int judged(IoOperation operation, int error) {
  const bool optional = operation == IoOperation::discard || operation == IoOperation::write_zeroes;
  return error == EOPNOTSUPP && !optional ? EIO : error;
}

}  // namespace

TransferOperation::TransferOperation(const DeviceGeometry& geometry, DeviceHandle& handle,
                                     const Transfer& transfer)
    : geometry_{geometry},
      handle_{handle},
      transfer_{transfer},
      next_{transfer.offset},
      end_{transfer.offset + transfer.length} {}

int TransferOperation::complaint() const {
  if (transfer_.operation == IoOperation::flush) return geometry_.can_flush ? 0 : EOPNOTSUPP;
  if (end_ < next_ || end_ > geometry_.padded_size ||
      !geometry_.is_aligned(transfer_.offset, transfer_.length)) {
    return EINVAL;
  }
  if (transfer_.fua && !geometry_.can_fua) return EOPNOTSUPP;
  switch (transfer_.operation) {
    case IoOperation::read:
    case IoOperation::write:
      return 0;
    case IoOperation::discard:
      return geometry_.max_discard == 0 ? EOPNOTSUPP : 0;
    case IoOperation::write_zeroes:
      if (geometry_.max_write_zeroes == 0) return EOPNOTSUPP;
      // A server that ignores a wish must not be asked for it.
      if (transfer_.no_unmap && !geometry_.own_peer) return EOPNOTSUPP;
      if (transfer_.fast && !geometry_.fast_zero) return EOPNOTSUPP;
      return 0;
    default:
      return EOPNOTSUPP;
  }
}

std::uint64_t TransferOperation::largest_piece() const {
  switch (transfer_.operation) {
    case IoOperation::discard:
      return geometry_.max_discard;
    case IoOperation::write_zeroes:
      return geometry_.max_write_zeroes;
    case IoOperation::write:
      if (transfer_.from == nullptr) return std::min<std::uint64_t>(geometry_.max_io, kZeroBytes);
      return geometry_.max_io;
    default:
      return geometry_.max_io;
  }
}

/// Length of the piece that starts at `offset`.
std::uint64_t TransferOperation::piece_at(std::uint64_t offset) const {
  std::uint64_t rest = end_ - offset;
  if (rest <= piece_) return rest;
  if (transfer_.operation != IoOperation::discard) return piece_;
  // Cut where granules meet: half a granule cannot be given back.
  const std::uint64_t past = geometry_.past_granule(offset + piece_);
  return past < piece_ ? piece_ - past : piece_;
}

std::uint32_t TransferOperation::flags() const {
  std::uint32_t flags = 0;
  switch (transfer_.operation) {
    case IoOperation::read:
      return wire::kIoSync;
    case IoOperation::write:
      if (transfer_.copy) flags |= wire::kIoCopy;
      if (transfer_.fua && honours_fua()) flags |= wire::kIoSync | wire::kIoFua;
      return flags;
    default:
      if (transfer_.copy) flags |= wire::kIoCopy;
      if (transfer_.fua && honours_fua()) flags |= wire::kIoSync | wire::kIoFua;
      if (transfer_.no_unmap) flags |= wire::kIoNoUnmap;
      if (transfer_.fast) flags |= wire::kIoFast;
      return flags;
  }
}

/// Where the server does not, a flush follows. Linux fails these flags on anything but writes.
bool TransferOperation::honours_fua() const {
  return transfer_.operation == IoOperation::write ? geometry_.native_fua : geometry_.own_peer;
}

void TransferOperation::start(rtrs::ClientLane& lane) {
  if (int error = complaint(); error != 0) {
    finish(error);
    return;
  }
  if (transfer_.operation == IoOperation::flush) {
    flush_due_ = true;
  } else {
    flush_follows_ = transfer_.fua && !honours_fua();
    flush_due_ = flush_follows_;
    piece_ = largest_piece();
    if (moves_data(transfer_.operation) && transfer_.length > piece_) {
      // Pieces of equal size: a small rest would cost a whole round of its own.
      std::uint64_t count = (transfer_.length + piece_ - 1) / piece_;
      std::uint64_t even = round_up((transfer_.length + count - 1) / count,
                                    std::max<std::uint64_t>(geometry_.block, 4096));
      piece_ = std::min(piece_, even);
    }
  }
  send_pieces(lane);
}

void TransferOperation::send_pieces(rtrs::ClientLane& lane) {
  if (sending_) return;  // a request ended while it was submitted; the loop below goes on
  sending_ = true;
  while (first_error_ == 0 && next_ < end_ && std::popcount(busy_) < int{kWindow}) {
    const std::uint64_t length = piece_at(next_);
    if (is_kept(next_)) {
      next_ += length;
    } else {
      submit_piece(lane, length);
    }
  }
  if (first_error_ == 0 && busy_ == 0 && next_ == end_ && flush_due_) {
    flush_due_ = false;
    submit_flush(lane);
  }
  sending_ = false;
  // This comes last, because the waiter may free the operation at once.
  if (busy_ == 0) finish(first_error_);
}

/// The next session owes nothing for the answers of the last one.
void TransferOperation::start_over() {
  next_ = transfer_.offset;
  flush_due_ = flush_follows_;
  kept_count_ = 0;
}

bool TransferOperation::is_kept(std::uint64_t offset) const {
  const auto kept = std::span{kept_}.first(kept_count_);
  return std::ranges::find(kept, offset) != kept.end();
}

TransferOperation::Fragment& TransferOperation::take_fragment(IoOperation operation,
                                                              std::uint32_t rw) {
  auto index = static_cast<unsigned>(std::countr_one(busy_));
  busy_ |= 1U << index;
  static_assert(std::is_trivially_destructible_v<Fragment>);
  Fragment& fragment = *::new (&fragments_[index].fragment) Fragment;
  fragment.io.header = wire::header_of(wire::MessageType::io);
  fragment.io.device_id = handle_.id.load(std::memory_order_relaxed);
  fragment.io.rw = static_cast<std::uint32_t>(operation) | rw;
  fragment.request.message = rtrs::wire::bytes_of(fragment.io);
  fragment.request.done = &TransferOperation::on_done;
  fragment.request.renew = &TransferOperation::on_renew;
  fragment.request.scope = &handle_.unresolved;
  fragment.request.waits_for_scope = transfer_.changes() || transfer_.for_change;
  fragment.request.context = &fragment;
  fragment.owner = this;
  fragment.index = index;
  fragment.renewals = renewals_;
  return fragment;
}

void TransferOperation::submit_piece(rtrs::ClientLane& lane, std::uint64_t length) {
  Fragment& fragment = take_fragment(transfer_.operation, flags());
  fragment.io.sector = next_ / wire::kSectorSize;
  fragment.io.length = static_cast<std::uint32_t>(length);
  const std::uint64_t done = next_ - transfer_.offset;
  if (transfer_.operation == IoOperation::read) {
    fragment.request.is_read = true;
    fragment.request.read_data = {transfer_.into + done, length};
  } else if (transfer_.operation == IoOperation::write) {
    fragment.request.write_data = {transfer_.from != nullptr ? transfer_.from + done : zero_bytes,
                                   length};
  }
  next_ += length;
  lane.submit(fragment.request);
}

void TransferOperation::submit_flush(rtrs::ClientLane& lane) {
  Fragment& fragment = take_fragment(IoOperation::flush, wire::kIoSync | wire::kIoFua);
  fragment.request.is_read = true;  // as Linux does: a read without data
  lane.submit(fragment.request);
}

/// Changes that may be lost with the server's machine until a flush has covered them.
bool TransferOperation::needs_flush() const { return !transfer_.fua && transfer_.changes(); }

void TransferOperation::on_renew(rtrs::Request& request) {
  auto& fragment = *static_cast<Fragment*>(request.context);
  fragment.io.device_id = fragment.owner->handle_.id.load(std::memory_order_relaxed);
  fragment.owner->renewed(fragment);
}

/// The session was recovered. This is called for each fragment in flight, one after the other.
void TransferOperation::renewed(Fragment& fragment) {
  if (!needs_flush() && !flush_follows_) return;
  if (++fragment.renewals != renewals_) {
    renewals_ = fragment.renewals;
    start_over();
  }
  if (fragment.io.operation() == transfer_.operation) {
    kept_[kept_count_++] = fragment.io.sector * wire::kSectorSize;
  }
}

void TransferOperation::on_done(rtrs::ClientLane& lane, rtrs::Request& request) {
  const auto& fragment = *static_cast<const Fragment*>(request.context);
  TransferOperation& self = *fragment.owner;
  self.busy_ &= ~(1U << fragment.index);
  // The device is lost: the request was sent without one, and the server's answer has no meaning.
  const bool lost = self.handle_.id.load(std::memory_order_relaxed) == kNoDevice;
  const int error = lost ? EIO : judged(self.transfer_.operation, request.error);
  // With the lane held: a recovery knows of every answer in the session before.
  if (error == 0 && self.needs_flush()) self.handle_.unflushed.note();
  if (self.first_error_ == 0) self.first_error_ = error;
  self.send_pieces(lane);
}

void TransferOperation::cancel(rtrs::ClientLane& lane) {
  for (unsigned i = 0; i < kWindow; ++i) {
    if ((busy_ & (1U << i)) != 0) lane.cancel(fragments_[i].fragment.request);
  }
  busy_ = 0;
}

}  // namespace rnbd
