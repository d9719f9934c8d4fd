// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/remote_device.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/client/block_parts.hpp"
#include "bridge/client/control.hpp"
#include "bridge/client/whole_extents.hpp"

namespace rnbd {

RemoteDevice::RemoteDevice(std::shared_ptr<Session> session,
                           std::shared_ptr<Session::Mapping> mapping, bool read_only)
    : Disk{session->known_of(*mapping).geometry, read_only},
      session_{std::move(session)},
      mapping_{std::move(mapping)},
      may_change_{session_->known_of(*mapping_).claimed},
      losses_told_{mapping_->handle.unflushed.told()} {
  if (!this->read_only()) mapping_->changes.add_user(this);
}

RemoteDevice::~RemoteDevice() {
  if (observes_) --mapping_->observers;
  mapping_->changes.remove_user(this);
  session_->release(mapping_);
}

void RemoteDevice::only_observe() {
  observes_ = true;
  ++mapping_->observers;
}

tl::expected<void, Failure> RemoteDevice::look_again(const Interrupt& interrupt) {
  auto geometry = session_->look_again(*mapping_, interrupt);
  if (!geometry) return tl::unexpected(geometry.error());
  geometry_ = *geometry;
  return {};
}

bool RemoteDevice::inside(std::uint64_t offset, std::uint64_t length) const {
  return offset <= geometry().size && length <= geometry().size - offset;
}

int RemoteDevice::check_change(std::uint64_t offset, std::uint64_t length) const {
  if (read_only()) return EROFS;
  return inside(offset, length) ? 0 : EINVAL;
}

int RemoteDevice::run(const Transfer& transfer, const Interrupt& interrupt) {
  TransferOperation operation{geometry(), mapping_->handle, transfer};
  return run(operation, interrupt);
}

int RemoteDevice::run(rtrs::Operation& operation, const Interrupt& interrupt) {
  return session_->client_->run(operation, interrupt);
}

/// A change of whole blocks, which no patch and no other user's change overlaps.
int RemoteDevice::run_change(const Transfer& transfer, const Interrupt& interrupt) {
  const auto place =
      mapping_->changes.enter(this, transfer.offset, transfer.offset + transfer.length, interrupt);
  if (!place) return EINTR;
  const bool in_doubt = mapping_->in_doubt.load(std::memory_order_relaxed);
  const int error = in_doubt ? EIO : run(transfer, interrupt);
  mapping_->changes.leave(*place);
  return error;
}

int RemoteDevice::read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt) {
  if (!inside(offset, data.size())) return EINVAL;
  if (data.empty()) return 0;
  if (geometry().is_aligned(offset, data.size())) {
    return run({.operation = wire::IoOperation::read,
                .offset = offset,
                .length = data.size(),
                .into = data.data()},
               interrupt);
  }
  const std::uint64_t end = offset + data.size();
  const BlockParts parts = cut_at_blocks(geometry(), offset, end);
  auto part = [&](std::uint64_t from, std::uint64_t to) {
    return data.subspan(from - offset, to - from);
  };
  if (int error = read_partial(offset, part(offset, parts.head_end), interrupt)) return error;
  if (parts.middle_end > parts.head_end) {
    rtrs::MutableBytes middle = part(parts.head_end, parts.middle_end);
    if (int error = run({.operation = wire::IoOperation::read,
                         .offset = parts.head_end,
                         .length = middle.size(),
                         .into = middle.data()},
                        interrupt)) {
      return error;
    }
  }
  return read_partial(parts.middle_end, part(parts.middle_end, end), interrupt);
}

/// Reads bytes inside one block.
int RemoteDevice::read_partial(std::uint64_t offset, rtrs::MutableBytes data,
                               const Interrupt& interrupt) {
  if (data.empty()) return 0;
  const std::uint64_t start = geometry().round_down(offset);
  std::vector<std::byte> block(geometry().round_up(offset + 1) - start);
  int error = run({.operation = wire::IoOperation::read,
                   .offset = start,
                   .length = block.size(),
                   .into = block.data()},
                  interrupt);
  if (error == 0) std::memcpy(data.data(), block.data() + (offset - start), data.size());
  return error;
}

int RemoteDevice::write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
                        const Interrupt& interrupt) {
  if (int error = check_change(offset, data.size())) return error;
  if (data.empty()) return 0;
  if (int error = claim(interrupt)) return error;
  const Transfer transfer{.operation = wire::IoOperation::write,
                          .offset = offset,
                          .length = data.size(),
                          .from = data.data(),
                          .fua = fua};
  return geometry().is_aligned(offset, data.size()) ? run_change(transfer, interrupt)
                                                    : write_any(transfer, interrupt);
}

/// A write (of zeroes without `from`) or write_zeroes; its ends may lie inside blocks. Its parts
/// are done in one session, or done again: parts answered in another one may be lost.
int RemoteDevice::write_any(const Transfer& whole, const Interrupt& interrupt) {
  const bool alone = geometry().is_aligned(whole.offset, whole.length);
  for (;;) {
    const std::uint64_t era = session_->era().number;
    const int error = write_parts(whole, interrupt);
    if (error != 0 || alone || whole.fua || session_->era().number == era) return error;
  }
}

int RemoteDevice::write_parts(const Transfer& whole, const Interrupt& interrupt) {
  const std::uint64_t end = whole.offset + whole.length;
  const BlockParts parts = cut_at_blocks(geometry(), whole.offset, end);
  auto at = [&](std::uint64_t place) {
    return whole.from != nullptr ? whole.from + (place - whole.offset) : nullptr;
  };
  // Whole blocks first: a fast zeroing that cannot be fast must not have changed anything.
  if (parts.middle_end > parts.head_end) {
    Transfer middle = whole;
    middle.offset = parts.head_end;
    middle.length = parts.middle_end - parts.head_end;
    middle.from = at(parts.head_end);
    int error = whole.operation == wire::IoOperation::write ? run_change(middle, interrupt)
                                                            : zero_blocks(middle, interrupt);
    if (error != 0) return error;
  }
  if (int error =
          patch(whole.offset, parts.head_end - whole.offset, whole.from, whole.fua, interrupt)) {
    return error;
  }
  return patch(parts.middle_end, end - parts.middle_end, at(parts.middle_end), whole.fua,
               interrupt);
}

/// Changes bytes inside one block; null writes zeroes.
int RemoteDevice::patch(std::uint64_t offset, std::uint64_t length, const std::byte* from, bool fua,
                        const Interrupt& interrupt) {
  if (length == 0) return 0;
  const std::uint64_t start = geometry().round_down(offset);
  std::vector<std::byte> block(geometry().round_up(offset + 1) - start);
  const PatchUnderWay alone{mapping_->changes, start, start + block.size(), interrupt};
  if (!alone.entered()) return EINTR;
  if (mapping_->in_doubt.load(std::memory_order_relaxed)) return EIO;
  Transfer transfer{.operation = wire::IoOperation::read,
                    .offset = start,
                    .length = block.size(),
                    .into = block.data(),
                    .for_change = true};
  if (int error = run(transfer, interrupt)) return error;

  std::byte* changed = block.data() + (offset - start);
  if (from != nullptr) {
    std::memcpy(changed, from, length);
  } else {
    std::memset(changed, 0, length);
  }
  transfer.operation = wire::IoOperation::write;
  transfer.from = block.data();
  transfer.fua = fua;
  return run(transfer, interrupt);
}

int RemoteDevice::flush(const Interrupt& interrupt) {
  Transfer transfer{.operation = wire::IoOperation::flush};
  Begun begun;
  if (int error = begin(transfer, begun)) return error;
  return end(transfer, begun, run(transfer, interrupt));
}

int RemoteDevice::discard(std::uint64_t offset, std::uint64_t length, bool fua,
                          const Interrupt& interrupt) {
  if (int error = check_change(offset, length)) return error;
  if (geometry().max_discard == 0) return EOPNOTSUPP;
  const BlockParts parts = whole_blocks_at_end(geometry(), offset, length);
  if (parts.middle_end <= parts.head_end) return 0;
  if (int error = claim(interrupt)) return error;
  return run_change({.operation = wire::IoOperation::discard,
                     .offset = parts.head_end,
                     .length = parts.middle_end - parts.head_end,
                     .fua = fua},
                    interrupt);
}

int RemoteDevice::write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                               const Interrupt& interrupt) {
  if (int error = check_change(offset, length)) return error;
  if (options.fast && !geometry().fast_zero) return EOPNOTSUPP;
  if (length == 0) return 0;
  if (int error = claim(interrupt)) return error;
  return write_any({.operation = wire::IoOperation::write_zeroes,
                    .offset = offset,
                    .length = length,
                    .fua = options.fua,
                    .no_unmap = !options.may_unmap,
                    .fast = options.fast},
                   interrupt);
}

/// Zeroes whole blocks by the server's means, or by writing zeroes where those do not fit.
int RemoteDevice::zero_blocks(const Transfer& transfer, const Interrupt& interrupt) {
  int error = run_change(transfer, interrupt);
  if (error != EOPNOTSUPP || transfer.fast) return error;
  Transfer data = transfer;
  data.operation = wire::IoOperation::write;
  data.from = nullptr;
  return run_change(data, interrupt);
}

int RemoteDevice::extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                          std::vector<wire::Extent>& extents, const Interrupt& interrupt) {
  if (!inside(offset, length) || length == 0 || max_extents == 0) return EINVAL;
  if (!geometry().extents) return EOPNOTSUPP;
  wire::BlockStatus question;
  question.header = wire::header_of(wire::MessageType::block_status);
  question.offset = offset;
  question.length = length;
  const std::size_t room =
      (geometry().max_io - sizeof(wire::BlockStatusResponse)) / sizeof(wire::Extent);
  std::vector<std::byte> answer(sizeof(wire::BlockStatusResponse) +
                                std::min(max_extents, room) * sizeof(wire::Extent));
  ControlOperation operation{mapping_->handle, question, answer};
  if (int error = run(operation, interrupt)) return error;
  auto told = wire::decode_block_status_response(answer, length);
  if (!told) return EPROTO;
  auto whole = whole_extents(*told, offset, length, geometry().user_block());
  if (whole.size() > max_extents) whole.resize(max_extents);
  extents.insert(extents.end(), whole.begin(), whole.end());
  return 0;
}

int RemoteDevice::cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) {
  if (!inside(offset, length)) return EINVAL;
  if (!geometry().cache) return EOPNOTSUPP;
  if (length == 0) return 0;
  wire::Cache message;
  message.header = wire::header_of(wire::MessageType::cache);
  message.offset = offset;
  message.length = length;
  // The message has no answer and changes nothing, so no request waits for it after it is
  // cancelled.
  ControlOperation operation{mapping_->handle, message, {}};
  return run(operation, interrupt);
}

}  // namespace rnbd
