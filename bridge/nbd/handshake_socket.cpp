// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/handshake_socket.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace rnbd::nbd {
namespace {

constexpr std::chrono::milliseconds kSlice{250};

}  // namespace

bool HandshakeSocket::wait_for(short events) {
  while (!interrupt_()) {  // a client that never stops talking does not keep us from leaving
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd descriptor{fd_, events, 0};
    if (::poll(&descriptor, 1, static_cast<int>(std::min(left, kSlice).count())) > 0) return true;
  }
  return false;
}

bool HandshakeSocket::receive(void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const bool has_some = tls_ != nullptr && tls_->has_more();
    if (!has_some && !wait_for(POLLIN)) return false;
    const ssize_t got = receive_some(at, size);
    if (got == -EAGAIN || got == -EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool HandshakeSocket::skip(std::size_t size) {
  std::array<char, 4096> room;
  while (size > 0) {
    const std::size_t piece = std::min(size, room.size());
    if (!receive(room.data(), piece)) return false;
    size -= piece;
  }
  return true;
}

bool HandshakeSocket::send(const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send_some(at, size);
    if (sent < 0 && sent != -EAGAIN && sent != -EINTR) return false;
    if (sent < 0) {
      if (!wait_for(POLLOUT)) return false;
      continue;
    }
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return tls_ == nullptr || flush();
}

ssize_t HandshakeSocket::receive_some(void* data, std::size_t size) {
  if (tls_ != nullptr) return tls_->receive(fd_, std::array<iovec, 1>{{{data, size}}});
  const ssize_t got = ::recv(fd_, data, size, MSG_DONTWAIT);
  return got >= 0 ? got : -errno;
}

ssize_t HandshakeSocket::send_some(const void* data, std::size_t size) {
  if (tls_ != nullptr) {
    return tls_->send(fd_, std::array<iovec, 1>{{{const_cast<void*>(data), size}}});
  }
  const ssize_t sent = ::send(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent >= 0 ? sent : -errno;
}

bool HandshakeSocket::flush() {
  while (tls_->flush(fd_) == 0) {
    if (!tls_->has_output()) return true;
    if (!wait_for(POLLOUT)) return false;
  }
  return false;
}

bool HandshakeSocket::has_arrivals() const {
  char byte = 0;
  return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool HandshakeSocket::secure(rtrs::tls::Session& session) {
  using Step = rtrs::tls::Session::Step;
  tls_ = &session;
  for (;;) {
    const Step step = session.shake_hands();
    if (!flush() || step == Step::failed) return false;
    if (step == Step::done) return true;
    ssize_t got = -EAGAIN;
    while (got == -EAGAIN || got == -EINTR) {
      if (!wait_for(POLLIN)) return false;
      got = session.fetch(fd_);
    }
    if (got < 0) return false;
  }
}

std::string_view clipped(std::string_view text) {
  if (text.size() <= kMaxNameLength) return text;
  std::size_t end = kMaxNameLength;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // UTF-8
  return text.substr(0, end);
}

bool HandshakeSocket::reply(std::uint32_t option, Reply type, std::string_view data) {
  OptionReply header;
  header.magic = kOptionReplyMagic;
  header.option = option;
  header.type = static_cast<std::uint32_t>(type);
  header.length = static_cast<std::uint32_t>(data.size());
  return send(bytes_of(header) + std::string{data});
}

}  // namespace rnbd::nbd
