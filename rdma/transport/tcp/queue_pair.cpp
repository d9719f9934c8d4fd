// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/queue_pair.hpp"

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs::tcp {
namespace {

FrameHeader frame(Opcode opcode, RemoteMemory to = {},
                  std::optional<std::uint32_t> immediate = std::nullopt) {
  FrameHeader header;
  header.opcode = static_cast<std::uint8_t>(opcode);
  header.address = to.address;
  header.key = to.key;
  if (immediate) {
    header.flags |= kHasImmediate;
    header.immediate = *immediate;
  }
  return header;
}

}  // namespace

TcpQueuePair::TcpQueuePair(Stream stream, Digests digests, std::shared_ptr<RegionTable> regions)
    : stream_{std::move(stream)},
      digests_{digests},
      staging_{std::make_unique_for_overwrite<std::byte[]>(kStaging)},
      read_size_{kStaging},
      awaited_{-EAGAIN},
      regions_{std::move(regions)} {
  bound_send_buffer(stream_.descriptor());
  if (regions_ == nullptr) return;
  answers_ = std::make_unique<ReadAnswers>();
  regions_->add_user(*this);
}

TcpQueuePair::~TcpQueuePair() { close(); }

void TcpQueuePair::close() {
  stream_.close();
  queue_.clear();
  if (regions_ != nullptr) std::exchange(regions_, nullptr)->remove_user(*this);
  if (failure_.empty()) failure_ = "closed";
}

bool TcpQueuePair::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  return false;
}

bool TcpQueuePair::fail(const char* what, int error) {
  try {
    std::string why = stream_.failure();
    return fail(why.empty() ? std::string{what} + ": " + std::strerror(error) : std::move(why));
  } catch (const std::bad_alloc&) {
    return fail("no memory");  // so short a text takes none
  }
}

// ---- Sending ---------------------------------------------------------------------------------

void TcpQueuePair::seal(FrameHeader& header, ConstBytes data, ConstBytes inlined) const {
  const std::size_t length = data.size() + inlined.size();
  header.length = static_cast<std::uint32_t>(length);
  if (digests_.data && length > 0) {
    header.payload_crc = crc_finish(crc_update(crc_update(kCrcStart, data), inlined));
  }
  if (digests_.header) {
    header.header_crc = crc32c(wire::bytes_of(header).first(offsetof(FrameHeader, header_crc)));
  }
}

Ticket TcpQueuePair::post(FrameHeader header, ConstBytes data, ConstBytes inlined,
                          FrameOrder order) {
  seal(header, data, inlined);
  const bool was_empty = queue_.empty();
  const Ticket ticket = queue_.push(header, data, inlined, order);
  if (was_empty) wake();
  return ticket;
}

Ticket TcpQueuePair::post_owned(FrameHeader header, ConstBytes message) {
  seal(header, message, {});
  const bool was_empty = queue_.empty();
  const Ticket ticket = queue_.push_copy(header, message);
  if (was_empty) wake();
  return ticket;
}

Ticket TcpQueuePair::write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                                          std::uint32_t immediate) {
  return post(frame(Opcode::write, to, immediate), data, header);
}

Ticket TcpQueuePair::write_in_any_order(RemoteMemory to, ConstBytes data, ConstBytes header,
                                        std::uint32_t immediate) {
  return post(frame(Opcode::write, to, immediate), data, header, FrameOrder::any);
}

Ticket TcpQueuePair::write(RemoteMemory to, ConstBytes data) {
  return post(frame(Opcode::write, to), data, {});
}

Ticket TcpQueuePair::send(ConstBytes message) { return post_owned(frame(Opcode::send), message); }

Ticket TcpQueuePair::send_with_immediate(ConstBytes message, std::uint32_t immediate) {
  return post_owned(frame(Opcode::send, {}, immediate), message);
}

Ticket TcpQueuePair::send_with_invalidate(std::uint32_t key) {
  return post(frame(Opcode::send_with_invalidate, {0, key}), {}, {});
}

Ticket TcpQueuePair::read(RemoteMemory from, MutableBytes into) {
  if (!reads_) reads_ = std::make_unique<RemoteReads>();
  ReadRequest request;
  request.token = reads_->next_token();
  request.length = static_cast<std::uint32_t>(into.size());
  const Ticket ticket = post(frame(Opcode::read, from), {}, wire::bytes_of(request));
  reads_->push({ticket, into});
  return ticket;
}

/// A read of nothing behind it: its answer comes when the write has landed.
Ticket TcpQueuePair::write_confirmed(RemoteMemory to, ConstBytes data) {
  post(frame(Opcode::write, to), data, {});
  return read({}, {});
}

void TcpQueuePair::flush() {
  if (!wants_to_write() || call_ != nullptr) return;
  // A failure is found by the next progress(): the connection's driver closes the path then.
  if (const int error = queue_.send(stream_); error != 0) fail("sending failed", error);
}

// ---- Memory and receives ---------------------------------------------------------------------

void TcpQueuePair::post_receives(unsigned count, std::uint32_t bytes) {
  if (!receives_.empty() && receives_.back().bytes == bytes) {
    receives_.back().count += count;
  } else {
    receives_.push_back({count, bytes});
  }
}

bool TcpQueuePair::take_receive() {
  if (receives_.empty()) return fail("the peer sent more than receives were posted for");
  if (--receives_.front().count == 0) receives_.pop_front();
  return true;
}

RemoteMemory TcpQueuePair::expose(std::uint32_t window, MutableBytes memory) {
  if (window >= windows_.size()) windows_.resize(window + 1);
  Window& w = windows_[window];
  RTRS_ENSURE(!w.exposed);
  w.memory = memory;
  w.exposed = true;
  w.landed = 0;
  ++w.generation;
  return {0, (window << kGenerationBits) | w.generation};
}

bool TcpQueuePair::collect(std::uint32_t window, std::uint32_t bytes) {
  return windows_[window].landed >= bytes;
}

void TcpQueuePair::withdraw(std::uint32_t window) {
  windows_[window].exposed = false;
  if (arrival_.active && arrival_.target != nullptr && arrival_.window == window &&
      arrival_.header.opcode == static_cast<std::uint8_t>(Opcode::write)) {
    arrival_.target = nullptr;
    arrival_.detour = {};
  }
}

void TcpQueuePair::end_detour() {
  const MutableBytes detour = std::exchange(arrival_.detour, {});
  const std::size_t landed = std::min<std::size_t>(arrival_.done, detour.size());
  if (landed != 0) std::memcpy(arrival_.target, detour.data(), landed);
}

}  // namespace rtrs::tcp
