// SPDX-License-Identifier: BSD-3-Clause
// Arrivals at a queue pair on a TCP socket.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "rdma/one_call.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {
namespace {

/// After a payload of this size more of its kind is likely: read headers only, so that the next
/// payload goes straight to its place.
constexpr std::uint32_t kLargePayload = 16 * 1024;
constexpr std::size_t kSmallRead = 1024;
/// System calls per progress(), so that one busy peer cannot keep a reactor to itself.
constexpr int kReadsPerProgress = 16;
/// The time of await(): long for a network, short for a thread that has to wait for its end.
constexpr std::chrono::microseconds kMostWait{2000};
constexpr timeval kReceiveTimeout{.tv_sec = 0, .tv_usec = kMostWait.count()};

}  // namespace

/// False in the middle of a payload: that goes to memory which may be withdrawn meanwhile.
bool TcpQueuePair::begin_await(OneCall* call, bool shared) {
  const bool can = stream_.is_open() && failure_.empty() && !arrival_.active && !starves_ &&
                   awaited_ == -EAGAIN && room() > 0;
  if (!can || !wants_to_write()) return can;
  if (call != nullptr && !stream_.encrypted()) {
    // Posts of others move the frames of the queue.
    pieces_ = shared ? queue_.copy(*call) : queue_.gather(*call);
    if (pieces_ > 0) call_ = call;
  }
  if (call_ == nullptr) flush();
  return call_ != nullptr || (failure_.empty() && !wants_to_write());
}

bool TcpQueuePair::await() {
  if (!may_block_) {
    // All else says MSG_DONTWAIT.
    const int socket = stream_.descriptor();
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kReceiveTimeout, sizeof(kReceiveTimeout));
    may_block_ = true;
  }
  if (call_ != nullptr) {
    const std::span from = std::span{call_->pieces}.first(pieces_);
    const auto [sent, received] =
        call_->exchange(stream_.descriptor(), from, {staging_.get() + staged_, room()}, kMostWait);
    call_sent_ = sent;
    awaited_ = received;
    return awaited_ != -EAGAIN;
  }
  if (stream_.encrypted()) return stream_.await();
  const ssize_t n = recv(stream_.descriptor(), staging_.get() + staged_, room(), 0);
  awaited_ = n >= 0 ? n : -errno;
  return awaited_ != -EAGAIN;
}

void TcpQueuePair::end_await() {
  if (std::exchange(call_, nullptr) == nullptr) return;
  if (call_sent_ >= 0) {
    queue_.advance(static_cast<std::size_t>(call_sent_));
  } else if (call_sent_ != -EAGAIN) {
    fail("sending failed", static_cast<int>(-call_sent_));
  }
  flush();
}

Connection::Status TcpQueuePair::progress(QueuePairHandler& handler) {
  flush();
  if (starves_) {
    if (!failure_.empty()) return Status::broken;
    if (const Status status = take(handler, 0, 0, 0); status != Status::more) return status;
  }
  if (const ssize_t awaited = std::exchange(awaited_, -EAGAIN); awaited != -EAGAIN) {
    if (!failure_.empty()) return Status::broken;
    const Status status = take(handler, awaited, 0, room());
    if (status != Status::more) return status;
  }
  for (int i = 0; i < kReadsPerProgress; ++i) {
    if (!failure_.empty()) return Status::broken;
    const Status status = receive_some(handler);
    if (status != Status::more) return status;
  }
  return Status::more;
}

Connection::Status TcpQueuePair::receive_some(QueuePairHandler& handler) {
  // The rest of a payload goes straight to its place; further bytes go to the staging buffer.
  std::array<iovec, 3> vector{};
  std::size_t direct = 0;
  std::size_t count = 0;
  if (arrival_.active && arrival_.target != nullptr) {
    direct = arrival_.header.length - arrival_.done;
    for (std::size_t from = arrival_.done; from < arrival_.header.length;) {
      const MutableBytes place = arrival_.place(from);
      vector[count++] = {place.data(), place.size()};
      from += place.size();
    }
  }
  const std::size_t staging_room = room();
  vector[count++] = {staging_.get() + staged_, staging_room};
  const ssize_t n = stream_.receive(std::span{vector}.first(count));
  return take(handler, n, direct, staging_room);
}

/// At most `direct` of the received bytes are already at their place, and up to `room` are in the
/// staging buffer. Nothing was received, if it starves.
Connection::Status TcpQueuePair::take(QueuePairHandler& handler, ssize_t result, std::size_t direct,
                                      std::size_t room) {
  if (result < 0) {
    if (result == -EAGAIN) return Status::drained;
    if (result == -EINTR) return Status::more;
    fail("receiving failed", static_cast<int>(-result));
    return Status::broken;
  }
  if (result == 0 && !starves_) {
    if (!arrival_.active && staged_ == 0) {
      fail("the peer closed the connection");
      return Status::closed;
    }
    fail("the peer closed the connection in the middle of a frame");
    return Status::broken;
  }
  const auto received = static_cast<std::size_t>(result);
  const std::size_t landed = std::min(received, direct);
  for (std::size_t rest = landed; rest > 0;) {
    const MutableBytes place = arrival_.place(arrival_.done);
    const std::size_t here = std::min(rest, place.size());
    land(place.first(here));
    rest -= here;
  }
  if (landed > 0 && arrival_.done == arrival_.header.length && !end(handler)) {
    return Status::broken;
  }
  starves_ = false;
  const std::size_t total = staged_ + received - landed;
  std::size_t used = 0;
  if (!consume(handler, {staging_.get(), total}, used)) return Status::broken;
  staged_ = total - used;
  if (used > 0 && staged_ > 0) std::memmove(staging_.get(), staging_.get() + used, staged_);
  if (starves_) return Status::starves;
  return received < direct + room && !stream_.has_more() ? Status::drained : Status::more;
}

bool TcpQueuePair::consume(QueuePairHandler& handler, ConstBytes bytes, std::size_t& used) {
  while (used < bytes.size()) {
    if (!arrival_.active) {
      if (bytes.size() - used < sizeof(FrameHeader)) return true;
      const auto header = decode_frame_header(bytes.subspan(used), digests_.header);
      if (!header) return fail(std::string{"bad frame: "} + to_string(header.error()));
      const bool asks = handler.asks_for_room(header->address, header->length);
      if (asks && !find_room(handler, *header)) return starves_;
      used += sizeof(FrameHeader);
      if (!begin(handler, *header)) return false;
    } else {
      const MutableBytes place = arrival_.place(arrival_.done);
      const ConstBytes piece = bytes.subspan(used, std::min(place.size(), bytes.size() - used));
      if (arrival_.target != nullptr) std::memcpy(place.data(), piece.data(), piece.size());
      land(piece);
      used += piece.size();
    }
    if (arrival_.done == arrival_.header.length && !end(handler)) return false;
  }
  return true;
}

/// False: it starves, or the write is not in order.
bool TcpQueuePair::find_room(QueuePairHandler& handler, const FrameHeader& header) {
  if (static_cast<Opcode>(header.opcode) != Opcode::write || header.length == 0) return true;
  const auto room = handler.room_for(header.address, header.length);
  if (room.wrong != nullptr) return fail(room.wrong);
  starves_ = !room.there;
  return room.there;
}

bool TcpQueuePair::begin(QueuePairHandler& handler, const FrameHeader& header) {
  arrival_ = Arrival{};
  arrival_.header = header;
  arrival_.active = true;
  read_size_ = header.length > kLargePayload ? kSmallRead : kStaging;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::write:
      return begin_write(handler, header);
    case Opcode::send:
      return begin_send(header);
    case Opcode::send_with_invalidate:
      return true;
    case Opcode::read:
      return begin_read(header);
    case Opcode::read_data:
      return begin_read_data(header);
  }
  return fail("bad frame: unknown operation");
}

bool TcpQueuePair::begin_write(QueuePairHandler& handler, const FrameHeader& header) {
  if (header.length == 0) return true;  // as in verbs, keys of empty operations are not looked at
  const std::uint32_t key = header.key;
  if (regions_ != nullptr && RegionTable::has(key)) return begin_region_write(header);
  arrival_.window = key >> kGenerationBits;
  if (arrival_.window >= windows_.size() ||
      windows_[arrival_.window].generation != (key & ((1U << kGenerationBits) - 1))) {
    return fail("the peer wrote with a key that does not exist");
  }
  const Window& window = windows_[arrival_.window];
  const std::uint64_t address = header.address;
  if (address > window.memory.size() || header.length > window.memory.size() - address) {
    return fail("the peer wrote beyond the memory it was given");
  }
  // Withdrawn since the peer was asked: it cannot know, its bytes are dropped.
  arrival_.target = window.exposed ? window.memory.data() + address : nullptr;
  const bool has_immediate = (header.flags & kHasImmediate) != 0;
  if (has_immediate && header.length > kLargePayload && arrival_.target != nullptr) {
    arrival_.detour = handler.detour(address, header.length, header.immediate);
  }
  return true;
}

bool TcpQueuePair::begin_send(const FrameHeader& header) {
  if (receives_.empty()) return fail("the peer sent more than receives were posted for");
  if (header.length > receives_.front().bytes) {
    return fail("the peer sent a message longer than the posted receive");
  }
  message_.resize(header.length);
  arrival_.target = message_.data();
  return true;
}

void TcpQueuePair::note_landed(Window& window, const FrameHeader& header) {
  if (header.address > window.landed) return;  // it left a gap
  window.landed = std::max<std::uint64_t>(window.landed, header.address + header.length);
}

void TcpQueuePair::land(ConstBytes bytes) {
  if (digests_.data) arrival_.crc = crc_update(arrival_.crc, bytes);
  arrival_.done += static_cast<std::uint32_t>(bytes.size());
}

bool TcpQueuePair::end(QueuePairHandler& handler) {
  const FrameHeader header = arrival_.header;
  const bool landed = arrival_.target != nullptr;
  arrival_.active = false;
  arrival_.target = nullptr;
  arrival_.detour = {};
  if (digests_.data && header.length > 0 && crc_finish(arrival_.crc) != header.payload_crc) {
    count_digest_error();
    return fail("the payload of a frame was damaged on the way (CRC32C mismatch)");
  }
  const bool has_immediate = (header.flags & kHasImmediate) != 0;
  Complaint complaint = nullptr;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::write:
      if (arrival_.refused) return fail("the peer wrote to memory that it had given back");
      if (landed && !arrival_.in_region) note_landed(windows_[arrival_.window], header);
      if (!has_immediate) return true;
      if (!take_receive()) return false;
      complaint = handler.on_write_with_immediate(header.immediate, header.length);
      break;
    case Opcode::send:
      if (!take_receive()) return false;
      complaint = handler.on_message(
          message_, has_immediate ? std::optional<std::uint32_t>{header.immediate} : std::nullopt);
      break;
    case Opcode::send_with_invalidate:
      if (!take_receive()) return false;
      break;  // keys of this binding end with their window
    case Opcode::read:
      return answer_read(header);
    case Opcode::read_data:
      complaint = end_read(handler);
      break;
  }
  if (complaint != nullptr) return fail(std::string{"protocol violation: "} + complaint);
  return failure_.empty();
}

}  // namespace rtrs::tcp
