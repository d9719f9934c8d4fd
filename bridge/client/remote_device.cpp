// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/remote_device.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "bridge/client/control.hpp"
#include "bridge/client/reopen.hpp"
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

std::optional<LeftDisk> RemoteDevice::leave_behind() const {
  const Session::Known known = session_->known_of(*mapping_);
  if (known.lost || mapping_->in_doubt || !geometry_.own_peer ||
      geometry_.export_uuid == wire::Uuid{}) {
    return std::nullopt;
  }
  const bool writer =
      !read_only() && (!must_claim() || session_->covers(*mapping_, geometry_.witness));
  LeftDisk left{.name = mapping_->name,
                .size = geometry_.size,
                .export_uuid = geometry_.export_uuid,
                .read_only = read_only(),
                .writer = writer,
                .unflushed = mapping_->handle.unflushed.pending(),
                .lost = losses_told_ != mapping_->handle.unflushed.losses(),
                .witness = writer ? known.witness : geometry_.witness,
                .volatile_epoch = known.volatile_epoch};
  left.witness.generation = known.witness.generation;
  left.witness.storage_life = known.witness.storage_life;
  return left;
}

/// Nobody else has had the right to change the device since a user left it who had that right. No
/// number of another origin proves that, since nobody had the right in between.
bool RemoteDevice::follows(const LeftDisk& left, const Interrupt& interrupt) {
  constexpr std::chrono::milliseconds kPause{50};
  const std::uint64_t was = left.witness.writer_serial;
  // The number is this process's own.
  if (!must_claim()) return session_->known_of(*mapping_).witness.writer_serial == was + 1;
  // A server tells no number while somebody may write, as the session that has just ended.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{1};
  while (geometry_.witness.writer_serial == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kPause);
    if (interrupt() || !look_again(interrupt)) break;
  }
  return geometry_.witness.writer_serial == was;
}

std::string RemoteDevice::go_on_from(const LeftDisk& left, const Interrupt& interrupt) {
  constexpr const char* kOtherWriter = "another client may have written meanwhile";
  read_only_ = read_only_ || left.read_only;
  if (!geometry_.own_peer || geometry_.export_uuid != left.export_uuid)
    return "it is other storage (its export UUID changed)";
  if (geometry_.size < left.size) return "it has become smaller";
  const auto found = session_->known_of(*mapping_).witness.found_generation;
  if (is_outdated(left.witness.generation, found))
    return "the server's record of its writers is older than what was known";
  // From here on the session notes losses itself.
  UnflushedWrites& unflushed = mapping_->handle.unflushed;
  if (left.unflushed || left.lost) unflushed.note();
  if (left.writer) {
    if (read_only() || !follows(left, interrupt)) return kOtherWriter;
  } else {
    // A CLAIM tells the server what this user has seen.
    geometry_.witness.sight = left.witness.sight;
    geometry_.witness.writer_serial = left.witness.writer_serial;
    const bool claimed = !read_only() && !must_claim();
    if (claimed && !session_->covers(*mapping_, geometry_.witness)) return kOtherWriter;
  }
  const Session::Known known = session_->known_of(*mapping_);
  const bool lost = VolatileEpoch::differ(left.volatile_epoch, known.volatile_epoch) ||
                    left.witness.storage_life != known.witness.storage_life;
  if ((left.unflushed && lost) || left.lost) unflushed.lose();
  return "";
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
