// SPDX-License-Identifier: BSD-3-Clause
// The bytes below a TCP queue pair: a socket, in clear or with TLS.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "rdma/transport/tls/session.hpp"

namespace rtrs::tcp {

/// One class and a branch, not two and a virtual call: the plain one costs a comparison.
///
/// Threads: one at a time; await() beside send() and flush().
class Stream {
 public:
  /// Takes over a connected socket, which must be non-blocking, and a session after its handshake;
  /// null: in clear.
  explicit Stream(int socket, std::unique_ptr<tls::Session> tls = nullptr)
      : socket_{socket}, tls_{std::move(tls)} {}
  Stream(Stream&& other) noexcept
      : socket_{std::exchange(other.socket_, -1)}, tls_{std::move(other.tls_)} {}
  Stream& operator=(Stream&&) = delete;
  ~Stream() { close(); }

  int descriptor() const { return socket_; }
  bool is_open() const { return socket_ >= 0; }
  bool encrypted() const { return tls_ != nullptr; }
  /// Null: nobody has proven anything.
  const Identity* peer() const { return tls_ ? &tls_->identity() : nullptr; }

  /// Bytes taken, or -errno; -EAGAIN when the socket is full.
  ssize_t send(std::span<const iovec> from) {
    if (tls_) return tls_->send(socket_, from);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(from.data());
    message.msg_iovlen = from.size();
    const ssize_t n = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n >= 0 ? n : -errno;
  }
  /// Bytes, 0 at the end, or -errno. Fewer than asked for only if there is no more. Without
  /// MSG_DONTWAIT it waits as the socket is set up.
  ssize_t receive(std::span<iovec> into, int flags = MSG_DONTWAIT) {
    if (tls_) {
      const bool wait = flags == 0 && !tls_->has_more();
      return wait && !tls_->await(socket_) ? -EAGAIN : tls_->receive(socket_, into);
    }
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    const ssize_t n = recvmsg(socket_, &message, flags);
    return n >= 0 ? n : -errno;
  }
  /// receive() has more to tell, of which the socket does not.
  bool has_more() const { return tls_ && tls_->has_more(); }
  /// True: bytes were taken for which the socket had no room.
  bool has_unsent() const { return tls_ && tls_->has_output(); }
  /// Sends that. Returns 0, also when some of it stays, or errno.
  int flush() { return tls_ ? tls_->flush(socket_) : 0; }
  /// Waits, as the socket is set up, for something to receive. With TLS only.
  bool await() { return tls_->await(socket_); }
  /// The reason why it broke, if that is more than an errno; "" = it is not.
  std::string failure() const { return tls_ ? tls_->failure().text : ""; }

  /// Closes the socket. A peer within TLS learns that this is the end.
  void close() {
    if (socket_ < 0) return;
    if (tls_) tls_->end(socket_);
    ::close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
  std::unique_ptr<tls::Session> tls_;
};

}  // namespace rtrs::tcp
