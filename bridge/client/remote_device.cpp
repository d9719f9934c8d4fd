// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/remote_device.hpp"

#include <algorithm>
#include <cerrno>

#include "bridge/client/control.hpp"
#include "bridge/client/whole_extents.hpp"

namespace rnbd {

RemoteDevice::RemoteDevice(std::shared_ptr<Session> session,
                           std::shared_ptr<Session::Mapping> mapping, bool read_only)
    : Disk{session->known_of(*mapping).geometry, read_only, mapping->changes, this},
      session_{std::move(session)},
      mapping_{std::move(mapping)},
      losses_told_{mapping_->handle.unflushed.told()} {
  may_change_ = session_->known_of(*mapping_).claimed;
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

int RemoteDevice::send(rtrs::Operation& operation, const Interrupt& interrupt) {
  return session_->client_->run(operation, interrupt);
}

int RemoteDevice::perform(const Transfer& transfer, const Interrupt& interrupt) {
  const bool change = transfer.changes() || transfer.for_change;
  if (change && mapping_->in_doubt.load(std::memory_order_relaxed)) return EIO;
  TransferOperation operation{geometry(), mapping_->handle, transfer};
  return send(operation, interrupt);
}

int RemoteDevice::flush(const Interrupt& interrupt) {
  Transfer transfer{.operation = wire::IoOperation::flush};
  Begun begun;
  if (int error = begin(transfer, begun)) return error;
  return end(transfer, begun, perform(transfer, interrupt));
}

int RemoteDevice::admit(const Transfer& transfer, Begun& begun) {
  if (transfer.operation == wire::IoOperation::flush)
    begun.flush = mapping_->handle.unflushed.begin_flush();
  if (!transfer.changes()) return 0;
  if (!may_change_.load(std::memory_order_relaxed)) return EAGAIN;
  return mapping_->in_doubt.load(std::memory_order_relaxed) ? EIO : 0;
}

int RemoteDevice::ended(const Transfer& transfer, const Begun& begun, int error) {
  if (transfer.operation != wire::IoOperation::flush) return error;
  return mapping_->handle.unflushed.end_flush(begun.flush, error, losses_told_);
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
  if (int error = send(operation, interrupt)) return error;
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
  return send(operation, interrupt);
}

}  // namespace rnbd
