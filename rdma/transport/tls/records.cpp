// SPDX-License-Identifier: BSD-3-Clause
// The traffic of a session once it stands, and between it and the socket.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/transport/tls/hooks.hpp"

namespace rtrs::tls {
namespace {

constexpr std::size_t kRecord = 16384;             ///< bytes of plaintext at most
constexpr std::size_t kOverhead = 22;              ///< header, type and tag
constexpr std::size_t kInput = kRecord + 256 + 5;  ///< the largest record that may come
constexpr std::size_t kReceive = 128 * 1024;       ///< bytes per system call
constexpr std::size_t kSend = 256 * 1024;          ///< plaintext per system call
/// In a row; more are a flood. Honest peers send new keys so, each 2^24 records.
constexpr unsigned kMostWithoutData = 32;

/// Enough for the ciphertext of so much plaintext, in few sizes.
std::size_t room_for_burst(std::size_t plaintext) {
  const std::size_t size = std::bit_ceil(std::min(plaintext, kSend));
  return size + 2 * (size / kRecord + 1) * kOverhead;
}

}  // namespace

/// Large buffers that are empty between two calls: one per thread, not one per connection.
struct Session::Scratch {
  std::array<std::byte, kReceive> input;
  std::size_t begin = 0, end = 0;
  std::array<std::byte, kRecord> record;
  std::vector<std::byte> output;
};

Session::Scratch& Session::scratch() {
  thread_local const std::unique_ptr<Scratch> own{new Scratch};
  return *own;
}

// ---- Ciphertext --------------------------------------------------------------------------------

ssize_t Session::Hooks::pull(gnutls_transport_ptr_t self, void* to, std::size_t size) {
  return static_cast<Session*>(self)->pull(static_cast<std::byte*>(to), size);
}

/// Only whole records are waited for, by whoever drives the session.
int Session::Hooks::wait(gnutls_transport_ptr_t /*self*/, unsigned /*milliseconds*/) { return 1; }

ssize_t Session::Hooks::push(gnutls_transport_ptr_t self, const giovec_t* from, int count) {
  auto& sink = *static_cast<Session*>(self)->sink_;
  const std::size_t before = sink.size();
  for (int i = 0; i < count; ++i) {
    const auto* const begin = static_cast<const std::byte*>(from[i].iov_base);
    sink.insert(sink.end(), begin, begin + from[i].iov_len);
  }
  return static_cast<ssize_t>(sink.size() - before);
}

ssize_t Session::pull(std::byte* to, std::size_t size) {
  if (input_begin_ < input_end_) {
    const std::size_t n = std::min(size, input_end_ - input_begin_);
    std::memcpy(to, input_.get() + input_begin_, n);
    input_begin_ += n;
    return static_cast<ssize_t>(n);
  }
  if (source_ != nullptr) return pull_from_socket(to, size);
  cut_ = ended_;
  gnutls_transport_set_errno(session_, ended_ ? socket_error_ : EAGAIN);
  return ended_ && socket_error_ == 0 ? 0 : -1;
}

ssize_t Session::pull_from_socket(std::byte* to, std::size_t size) {
  Scratch& source = *source_;
  if (source.begin == source.end) {
    // Bytes that do not fit would have to be kept somewhere, so no more are taken.
    const std::size_t fits = wanted_ + (wanted_ / kRecord + 2) * kOverhead;
    const std::size_t ask = std::clamp(fits, kInput, kReceive);
    ssize_t n = -1;
    int error = EAGAIN;
    if (ended_) {
      n = socket_error_ == 0 ? 0 : -1;
      error = socket_error_;
    } else if (!drained_) {
      n = ::recv(socket_, source.input.data(), ask, MSG_DONTWAIT);
      error = errno;
      drained_ = n < static_cast<ssize_t>(ask) && (n >= 0 || error == EAGAIN);
    }
    if (n <= 0) {
      if (n < 0 && error != EAGAIN && error != EINTR) socket_error_ = error;
      cut_ = n == 0 || socket_error_ != 0;
      starved_ = true;
      gnutls_transport_set_errno(session_, n < 0 ? error : 0);
      return n;
    }
    source.begin = 0;
    source.end = static_cast<std::size_t>(n);
  }
  const std::size_t n = std::min(size, source.end - source.begin);
  std::memcpy(to, source.input.data() + source.begin, n);
  source.begin += n;
  return static_cast<ssize_t>(n);
}

void Session::keep(std::span<const std::byte> rest) {
  const std::size_t have = input_end_ - input_begin_;
  if (have + rest.size() > input_size_) {
    grow_input(std::max(kInput, have + rest.size()));
  } else if (have > 0 && input_begin_ > 0) {
    std::memmove(input_.get(), input_.get() + input_begin_, have);
  }
  if (!rest.empty()) std::memcpy(input_.get() + have, rest.data(), rest.size());
  input_begin_ = 0;
  input_end_ = have + rest.size();
}

/// The rest is at the beginning then.
void Session::grow_input(std::size_t size) {
  const std::size_t have = input_end_ - input_begin_;
  auto larger = std::make_unique_for_overwrite<std::byte[]>(size);
  if (have > 0) std::memcpy(larger.get(), input_.get() + input_begin_, have);
  input_ = std::move(larger);
  input_size_ = size;
  input_begin_ = 0;
  input_end_ = have;
}

/// Behind what is there, in a buffer of `least` bytes or more.
std::size_t Session::room_for_input(std::size_t least) {
  keep({});
  if (input_size_ < least) grow_input(least);
  return input_size_ - input_end_;
}

/// A stranger gets little memory: GnuTLS takes what has come out of it each time, and keeps what is
/// not whole yet. A chain of certificates has some KiB.
ssize_t Session::fetch(int socket) {
  constexpr std::size_t kFetch = 2048, kMostOfStranger = 32 * 1024;  // bytes
  if (fetched_ > kMostOfStranger && credentials().role() == Role::server) return -EMSGSIZE;
  const std::size_t room = room_for_input(kFetch);
  if (room == 0) return -ENOBUFS;
  const ssize_t n = ::recv(socket, input_.get() + input_end_, room, MSG_DONTWAIT);
  if (n > 0) {
    input_end_ += static_cast<std::size_t>(n);
    fetched_ += static_cast<std::size_t>(n);
  }
  if (n == 0) ended_ = true;
  return n >= 0 ? n : -errno;
}

bool Session::await(int socket) {
  const std::size_t room = room_for_input(kInput);
  if (room == 0) return true;
  const ssize_t n = ::recv(socket, input_.get() + input_end_, room, 0);
  if (n > 0) {
    input_end_ += static_cast<std::size_t>(n);
    return true;
  }
  const int error = n == 0 ? 0 : errno;
  if (error == EAGAIN || error == EINTR) return false;
  ended_ = true;
  socket_error_ = error;
  return true;
}

int Session::flush(int socket) {
  while (has_output()) {
    const ssize_t n = ::send(socket, output_.data() + output_begin_, output_.size() - output_begin_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? 0 : errno;
    output_begin_ += static_cast<std::size_t>(n);
  }
  // The thread keeps the memory for the next burst, the connection none.
  std::vector<std::byte>& kept = scratch().output;
  if (kept.capacity() < output_.capacity()) kept.swap(output_);
  std::vector<std::byte>{}.swap(output_);
  output_begin_ = 0;
  return 0;
}

// ---- Plaintext ---------------------------------------------------------------------------------

/// A cursor over what is to be sent.
class Session::Pieces {
 public:
  explicit Pieces(std::span<const iovec> all) : all_{all} { skip_empty(); }
  bool empty() const { return all_.empty(); }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const iovec& piece : all_) sum += piece.iov_len;
    return sum - offset_;
  }
  /// Pieces that fill a record are left where they are; small pieces are gathered in `room`.
  std::span<const std::byte> take(std::span<std::byte> room) {
    if (all_.front().iov_len - offset_ >= room.size()) return part(room.size());
    std::size_t gathered = 0;
    while (gathered < room.size() && !all_.empty()) {
      const auto next = part(std::min(room.size() - gathered, all_.front().iov_len - offset_));
      std::memcpy(room.data() + gathered, next.data(), next.size());
      gathered += next.size();
    }
    return room.first(gathered);
  }

 private:
  std::span<const std::byte> part(std::size_t size) {
    const auto* const begin = static_cast<const std::byte*>(all_.front().iov_base) + offset_;
    offset_ += size;
    skip_empty();
    return {begin, size};
  }
  void skip_empty() {
    while (!all_.empty() && offset_ == all_.front().iov_len) {
      all_ = all_.subspan(1);
      offset_ = 0;
    }
  }

  std::span<const iovec> all_;
  std::size_t offset_ = 0;
};

bool Session::encrypt(std::span<const std::byte> data) {
  const ssize_t n = gnutls_record_send(session_, data.data(), data.size());
  if (n == static_cast<ssize_t>(data.size())) return true;
  if (failure_.text.empty()) {
    failure_ = {EPIPE, std::string{"TLS cannot send: "} + gnutls_strerror(static_cast<int>(n))};
  }
  state_ = State::broken;
  return false;
}

/// Fills output_, whose memory is that of the thread unless the socket gets full.
std::size_t Session::encrypt_burst(Pieces& pieces) {
  Scratch& own = scratch();
  own.output.clear();
  own.output.reserve(room_for_burst(pieces.bytes()));
  sink_ = &own.output;
  std::size_t taken = 0;
  while (state_ != State::broken && taken < kSend && !pieces.empty()) {
    const auto record = pieces.take(own.record);
    if (encrypt(record)) taken += record.size();
  }
  sink_ = &output_;
  output_.swap(own.output);
  return taken;
}

ssize_t Session::send(int socket, std::span<const iovec> from) {
  if (state_ == State::broken) return -EPIPE;
  if (const int error = flush(socket); error != 0) return -error;
  std::size_t taken = 0;
  Pieces pieces{from};
  while (!pieces.empty() && !has_output()) {
    taken += encrypt_burst(pieces);
    if (state_ == State::broken) return -EPIPE;
    if (const int error = flush(socket); error != 0) return -error;
  }
  return taken > 0 ? static_cast<ssize_t>(taken) : -EAGAIN;
}

bool Session::has_more() const {
  return later_ || input_begin_ < input_end_ || gnutls_record_check_pending(session_) > 0;
}

/// GnuTLS says GNUTLS_E_AGAIN also after a record without data, of which more may lie behind.
/// TLS 1.2 has warnings, too.
bool Session::goes_on(ssize_t result) {
  if (result == GNUTLS_E_INTERRUPTED) return true;
  const bool without_data =
      result == GNUTLS_E_WARNING_ALERT_RECEIVED || (result == GNUTLS_E_AGAIN && !starved_);
  return without_data && ++without_data_ <= kMostWithoutData;
}

/// -errno, or 0 for an end in order.
ssize_t Session::receive_failed(ssize_t error) {
  if (error == 0 && !cut_) return 0;
  const bool flood = without_data_ > kMostWithoutData;
  if (error == GNUTLS_E_AGAIN && !flood) return -EAGAIN;
  state_ = State::broken;
  int number = EBADMSG;
  std::string text;
  if (flood) {
    text = "it sends TLS records without data, one after the other";
  } else if (cut_) {
    number = socket_error_ != 0 ? socket_error_ : ECONNRESET;
    text = socket_error_ != 0 ? std::string{"receiving failed: "} + std::strerror(socket_error_)
                              : "the connection was cut without TLS's end";
  } else if (error == GNUTLS_E_FATAL_ALERT_RECEIVED) {
    number = EACCES;
    text = refusal();
  } else {
    text = std::string{"a TLS record is damaged, or no TLS: "} +
           gnutls_strerror(static_cast<int>(error));
    gnutls_alert_send_appropriate(session_, static_cast<int>(error));
  }
  if (failure_.text.empty()) failure_ = {number, std::move(text)};
  return -number;
}

ssize_t Session::receive(int socket, std::span<const iovec> into) {
  if (later_) return std::exchange(later_, std::nullopt).value();
  Scratch& own = scratch();
  own.begin = own.end = 0;
  source_ = &own;
  socket_ = socket;
  drained_ = starved_ = false;
  wanted_ = 0;
  for (const iovec& piece : into) wanted_ += piece.iov_len;
  std::size_t received = 0;
  std::optional<ssize_t> stopped;
  for (const iovec& piece : into) {
    for (std::size_t at = 0; at < piece.iov_len && !stopped;) {
      const ssize_t n = gnutls_record_recv(session_, static_cast<std::byte*>(piece.iov_base) + at,
                                           piece.iov_len - at);
      if (n > 0) {
        at += static_cast<std::size_t>(n);
        received += static_cast<std::size_t>(n);
        wanted_ -= static_cast<std::size_t>(n);
        without_data_ = 0;
      } else if (!goes_on(n)) {
        stopped = receive_failed(n);
      }
    }
  }
  source_ = nullptr;
  if (own.begin < own.end) {
    keep(std::span{own.input}.subspan(own.begin, own.end - own.begin));
  }
  if (received == 0) return stopped.value_or(0);
  if (stopped && *stopped != -EAGAIN) later_ = stopped;
  return static_cast<ssize_t>(received);
}

void Session::end(int socket) {
  if (state_ != State::ready || has_output()) return;
  state_ = State::broken;
  if (gnutls_bye(session_, GNUTLS_SHUT_WR) == 0) flush(socket);
}

}  // namespace rtrs::tls
