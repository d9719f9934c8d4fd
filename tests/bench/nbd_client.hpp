// SPDX-License-Identifier: BSD-3-Clause
// The part of NBD that a load generator needs: connect, NBD_OPT_GO, simple replies.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace nbdload {

[[noreturn]] inline void die(const std::string& what) {
  throw std::runtime_error{what + ": " + std::strerror(errno)};
}

inline std::uint64_t big(std::uint64_t value) { return __builtin_bswap64(value); }

// ---- Bytes over a socket

inline void send_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0) die("send");
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

inline void receive_all(int fd, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    ssize_t got = ::recv(fd, at, size, 0);
    if (got < 0) die("recv");
    if (got == 0) throw std::runtime_error{"the server closed the connection"};
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

/// Connects to a Unix socket, or to a TCP address when `unix_path` is empty.
inline int connect_to(const std::string& unix_path, const std::string& host,
                      const std::string& port) {
  if (!unix_path.empty()) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (unix_path.size() >= sizeof address.sun_path) {
      throw std::runtime_error{"the socket's path is too long: " + unix_path};
    }
    unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
    int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      die(unix_path);
    }
    return fd;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    throw std::runtime_error{"no such host: " + host};
  }
  int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, found->ai_addr, found->ai_addrlen) != 0) die(host);
  ::freeaddrinfo(found);
  int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

// ---- NBD, newstyle with NBD_OPT_GO and simple replies

struct __attribute__((packed)) OptionReply {
  std::uint64_t magic;
  std::uint32_t option, type, length;
};

/// Returns the size of the export in bytes.
inline std::uint64_t handshake(int fd, const std::string& name) {
  struct __attribute__((packed)) {
    std::uint64_t magic, option_magic;
    std::uint16_t flags;
  } hello;
  receive_all(fd, &hello, sizeof hello);
  if (big(hello.magic) != 0x4e42444d41474943 || big(hello.option_magic) != 0x49484156454f5054) {
    throw std::runtime_error{"the peer is no NBD server"};
  }
  std::uint32_t flags = htonl(3);  // fixed newstyle, no zeroes
  send_all(fd, &flags, sizeof flags);

  std::string message;
  auto put = [&message](auto value) {
    message.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(big(0x49484156454f5054));
  put(htonl(7));  // NBD_OPT_GO
  put(htonl(static_cast<std::uint32_t>(4 + name.size() + 2)));
  put(htonl(static_cast<std::uint32_t>(name.size())));
  message += name;
  put(htons(0));
  send_all(fd, message.data(), message.size());

  std::uint64_t size = 0;
  while (true) {
    OptionReply reply;
    receive_all(fd, &reply, sizeof reply);
    std::string payload(ntohl(reply.length), '\0');
    receive_all(fd, payload.data(), payload.size());
    std::uint32_t type = ntohl(reply.type);
    if (type == 1) return size;  // NBD_REP_ACK
    if (type != 3) throw std::runtime_error{"the server refused the export: " + payload};
    if (payload.size() >= 10 && payload[0] == 0 && payload[1] == 0) {  // NBD_INFO_EXPORT
      std::memcpy(&size, payload.data() + 2, sizeof size);
      size = big(size);
    }
  }
}

struct __attribute__((packed)) Request {
  std::uint32_t magic;
  std::uint16_t flags, type;
  std::uint64_t handle, offset;
  std::uint32_t length;
};
static_assert(sizeof(Request) == 28);

struct __attribute__((packed)) Reply {
  std::uint32_t magic, error;
  std::uint64_t handle;
};
static_assert(sizeof(Reply) == 16);

}  // namespace nbdload
