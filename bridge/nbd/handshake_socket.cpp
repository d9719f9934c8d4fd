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
  while (!interrupt_()) {  // whoever always has more to say does not keep us from leaving
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
    if (!wait_for(POLLIN)) return false;
    const ssize_t got = ::recv(fd_, at, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
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
    const ssize_t sent = ::send(fd_, at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent < 0) {
      if (!wait_for(POLLOUT)) return false;
      continue;
    }
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
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
