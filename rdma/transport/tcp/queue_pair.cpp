#include "rdma/transport/tcp/queue_pair.hpp"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs::tcp {
namespace {

constexpr std::size_t kStaging = 64 * 1024;
/// After a payload of this size more of its kind is likely: read headers only, so that the next
/// payload goes straight to its place.
constexpr std::uint32_t kLargePayload = 16 * 1024;
constexpr std::size_t kSmallRead = 1024;
/// System calls per progress(), so that one busy peer cannot keep a reactor to itself.
constexpr int kReadsPerProgress = 16;
constexpr unsigned kGenerationBits = 8;

FrameHeader frame(Opcode opcode) {
  FrameHeader header;
  header.opcode = static_cast<std::uint8_t>(opcode);
  return header;
}

void add_immediate(FrameHeader& header, std::uint32_t immediate) {
  header.flags |= kHasImmediate;
  header.immediate = immediate;
}

std::string errno_text(const char* what, int error) {
  return std::string{what} + ": " + std::strerror(error);
}

}  // namespace

TcpQueuePair::TcpQueuePair(int socket, Digests digests)
    : socket_{socket},
      digests_{digests},
      staging_{std::make_unique_for_overwrite<std::byte[]>(kStaging)},
      read_size_{kStaging} {}

TcpQueuePair::~TcpQueuePair() { close(); }

void TcpQueuePair::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  queue_.clear();
  if (failure_.empty()) failure_ = "closed";
}

// ---- Sending ---------------------------------------------------------------------------------

Ticket TcpQueuePair::post(FrameHeader header, ConstBytes data, ConstBytes inlined) {
  const std::size_t length = data.size() + inlined.size();
  header.length = static_cast<std::uint32_t>(length);
  if (digests_.data && length > 0) {
    header.payload_crc = crc_finish(crc_update(crc_update(kCrcStart, data), inlined));
  }
  if (digests_.header) {
    header.header_crc = crc32c(wire::bytes_of(header).first(offsetof(FrameHeader, header_crc)));
  }
  const bool was_empty = queue_.empty();
  const Ticket ticket = queue_.push(header, data, inlined);
  if (was_empty && wakeup_ != nullptr) wakeup_(wakeup_context_);
  return ticket;
}

Ticket TcpQueuePair::post_owned(FrameHeader header, ConstBytes message) {
  header.length = static_cast<std::uint32_t>(message.size());
  if (digests_.data && !message.empty()) header.payload_crc = crc32c(message);
  if (digests_.header) {
    header.header_crc = crc32c(wire::bytes_of(header).first(offsetof(FrameHeader, header_crc)));
  }
  const bool was_empty = queue_.empty();
  const Ticket ticket = queue_.push_copy(header, message);
  if (was_empty && wakeup_ != nullptr) wakeup_(wakeup_context_);
  return ticket;
}

Ticket TcpQueuePair::write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                                          std::uint32_t immediate) {
  FrameHeader out = frame(Opcode::write);
  add_immediate(out, immediate);
  out.address = to.address;
  out.key = to.key;
  return post(out, data, header);
}

Ticket TcpQueuePair::write(RemoteMemory to, ConstBytes data) {
  FrameHeader out = frame(Opcode::write);
  out.address = to.address;
  out.key = to.key;
  return post(out, data, {});
}

Ticket TcpQueuePair::send(ConstBytes message) { return post_owned(frame(Opcode::send), message); }

Ticket TcpQueuePair::send_with_immediate(ConstBytes message, std::uint32_t immediate) {
  FrameHeader out = frame(Opcode::send);
  add_immediate(out, immediate);
  return post_owned(out, message);
}

Ticket TcpQueuePair::send_with_invalidate(std::uint32_t key) {
  FrameHeader out = frame(Opcode::send_with_invalidate);
  out.key = key;
  return post(out, {}, {});
}

void TcpQueuePair::flush() {
  if (socket_ < 0 || queue_.empty()) return;
  // A failure is found by the next progress(): whoever drives the connection closes the path then.
  if (const int error = queue_.send(socket_); error != 0) fail(errno_text("sending failed", error));
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
  ++w.generation;
  return {0, (window << kGenerationBits) | w.generation};
}

void TcpQueuePair::withdraw(std::uint32_t window) {
  windows_[window].exposed = false;
  if (arrival_.active && arrival_.target != nullptr && arrival_.window == window &&
      arrival_.header.opcode == static_cast<std::uint8_t>(Opcode::write)) {
    arrival_.target = nullptr;
  }
}

// ---- Receiving -------------------------------------------------------------------------------

bool TcpQueuePair::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  return false;
}

Connection::Status TcpQueuePair::progress(QueuePairHandler& handler) {
  flush();
  for (int i = 0; i < kReadsPerProgress; ++i) {
    if (!failure_.empty()) return Status::broken;
    const Status status = receive_some(handler);
    if (status != Status::more) return status;
  }
  return Status::more;
}

Connection::Status TcpQueuePair::receive_some(QueuePairHandler& handler) {
  // The rest of a payload goes straight to its place; what follows it goes to the staging buffer.
  std::array<iovec, 2> vector{};
  std::size_t direct = 0;
  std::size_t count = 0;
  if (arrival_.active && arrival_.target != nullptr) {
    direct = arrival_.header.length - arrival_.done;
    vector[count++] = {arrival_.target + arrival_.done, direct};
  }
  const std::size_t room = std::min(read_size_, kStaging - staged_);
  vector[count++] = {staging_.get() + staged_, room};
  msghdr message{};
  message.msg_iov = vector.data();
  message.msg_iovlen = count;
  const ssize_t n = recvmsg(socket_, &message, MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::drained;
    if (errno == EINTR) return Status::more;
    fail(errno_text("receiving failed", errno));
    return Status::broken;
  }
  if (n == 0) {
    if (!arrival_.active && staged_ == 0) {
      fail("the peer closed the connection");
      return Status::closed;
    }
    fail("the peer closed the connection in the middle of a frame");
    return Status::broken;
  }
  const auto received = static_cast<std::size_t>(n);
  const std::size_t landed = std::min(received, direct);
  if (landed > 0) {
    land({arrival_.target + arrival_.done, landed});
    if (arrival_.done == arrival_.header.length && !end(handler)) return Status::broken;
  }
  const std::size_t total = staged_ + received - landed;
  std::size_t used = 0;
  if (!consume(handler, {staging_.get(), total}, used)) return Status::broken;
  staged_ = total - used;
  if (used > 0 && staged_ > 0) std::memmove(staging_.get(), staging_.get() + used, staged_);
  return received < direct + room ? Status::drained : Status::more;
}

bool TcpQueuePair::consume(QueuePairHandler& handler, ConstBytes bytes, std::size_t& used) {
  while (used < bytes.size()) {
    if (!arrival_.active) {
      if (bytes.size() - used < sizeof(FrameHeader)) return true;
      const auto header = decode_frame_header(bytes.subspan(used), digests_.header);
      if (!header) return fail(std::string{"bad frame: "} + to_string(header.error()));
      used += sizeof(FrameHeader);
      if (!begin(*header)) return false;
    } else {
      const std::size_t missing = arrival_.header.length - arrival_.done;
      const ConstBytes piece = bytes.subspan(used, std::min(missing, bytes.size() - used));
      if (arrival_.target != nullptr) {
        std::memcpy(arrival_.target + arrival_.done, piece.data(), piece.size());
      }
      land(piece);
      used += piece.size();
    }
    if (arrival_.done == arrival_.header.length && !end(handler)) return false;
  }
  return true;
}

bool TcpQueuePair::begin(const FrameHeader& header) {
  arrival_ = Arrival{};
  arrival_.header = header;
  arrival_.active = true;
  read_size_ = header.length > kLargePayload ? kSmallRead : kStaging;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::write:
      return begin_write(header);
    case Opcode::send:
      return begin_send(header);
    case Opcode::send_with_invalidate:
      return true;
  }
  return fail("bad frame: unknown operation");
}

bool TcpQueuePair::begin_write(const FrameHeader& header) {
  if (header.length == 0) return true;  // as in verbs, keys of empty operations are not looked at
  const std::uint32_t key = header.key;
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

void TcpQueuePair::land(ConstBytes bytes) {
  if (digests_.data) arrival_.crc = crc_update(arrival_.crc, bytes);
  arrival_.done += static_cast<std::uint32_t>(bytes.size());
}

bool TcpQueuePair::end(QueuePairHandler& handler) {
  const FrameHeader header = arrival_.header;
  arrival_.active = false;
  arrival_.target = nullptr;
  if (digests_.data && header.length > 0 && crc_finish(arrival_.crc) != header.payload_crc) {
    return fail("the payload of a frame was damaged on the way (CRC32C mismatch)");
  }
  const bool has_immediate = (header.flags & kHasImmediate) != 0;
  Complaint complaint = nullptr;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::write:
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
  }
  if (complaint != nullptr) return fail(std::string{"protocol violation: "} + complaint);
  return failure_.empty();
}

}  // namespace rtrs::tcp
