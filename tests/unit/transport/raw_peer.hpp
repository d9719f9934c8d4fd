// SPDX-License-Identifier: BSD-3-Clause
// Peers made of bytes, for what no honest peer would do.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/transport/tcp/frame.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/unit/transport/echo.hpp"

namespace rtrs::test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// A client made of bytes.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer = 0)
      : socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    if (receive_buffer > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const auto address = loopback(port);
    REQUIRE(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    const int at_once = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  }
  ~RawClient() {
    if (socket_ >= 0) ::close(socket_);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// False: the server does not take all of it.
  bool say(ConstBytes bytes) {
    return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// True once the server has accepted the connection (it lives in this very process).
  bool is_accepted() const {
    sockaddr_in here{};
    socklen_t size = sizeof(here);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &size);
    for (int other = 0; other < 1024; ++other) {
      sockaddr_in there{};
      size = sizeof(there);
      if (getpeername(other, reinterpret_cast<sockaddr*>(&there), &size) != 0) continue;
      if (there.sin_family == AF_INET && there.sin_port == here.sin_port) return true;
    }
    return false;
  }
  void leave() { ::close(std::exchange(socket_, -1)); }
  /// At once and without a farewell, as who scans ports does.
  void vanish() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    leave();
  }
  template <class T>
  void say(const T& message) {
    say(wire::bytes_of(message));
  }
  /// False: the server closed instead.
  bool hear(MutableBytes bytes) {
    return recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// Waits until the server closes; whatever it says before is dropped.
  bool is_closed_by_server() {
    std::vector<std::byte> scratch(4096);
    for (;;) {
      const ssize_t n = recv(socket_, scratch.data(), scratch.size(), 0);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
      if (n < 0) return false;
    }
  }
  /// The server's answer to our hello: its record's errno, 0 = accepted, -1 = closed without an
  /// answer.
  int answer() {
    tcp::Hello hello;
    if (!hear(std::as_writable_bytes(std::span{&hello, 1}))) return -1;
    const auto decoded = tcp::decode_hello(wire::bytes_of(hello));
    REQUIRE(decoded.has_value());
    const auto record = wire::decode_connect_response(decoded->record);
    REQUIRE(record.has_value());
    extension = record->accept.extension;
    return record->error;
  }
  wire::Extension extension;  ///< of the last answer
  void hello(const wire::ConnectParameters& parameters) {
    say(tcp::make_hello(wire::bytes_of(wire::encode(parameters)), 0));
  }
  void frame(tcp::Opcode opcode, std::uint8_t flags, std::uint32_t immediate, std::uint64_t address,
             std::uint32_t key, ConstBytes payload) {
    tcp::FrameHeader header;
    header.opcode = static_cast<std::uint8_t>(opcode);
    header.flags = flags;
    header.length = static_cast<std::uint32_t>(payload.size());
    header.immediate = immediate;
    header.address = address;
    header.key = key;
    say(header);
    say(payload);
  }

 private:
  int socket_;
};

inline wire::ConnectParameters parameters(std::uint16_t cid, std::uint16_t count, std::uint8_t id) {
  wire::ConnectParameters p;
  p.cid = cid;
  p.cid_count = count;
  p.reconnect_count = 1;
  p.path_uuid.fill(id);
  p.session_uuid.fill(id);
  p.first_connection = true;
  return p;
}

inline void check_good_client(const EchoServer& server) {
  auto client = connect(client_options(server.port));
  EchoOperation read{"x", {}, {}};
  CHECK(client->run(read, {}) == 0);
}

/// A raw client that has a path of one connection 0 and one connection 1, ready for requests on
/// connection 1; it is the first one of its session, unless the two have different ids.
struct RawSession {
  explicit RawSession(const EchoServer& server, std::uint8_t id = 9) : RawSession{server, id, id} {}
  RawSession(const EchoServer& server, std::uint8_t id, std::uint8_t path)
      : control{server.port}, io{server.port} {
    for (std::uint16_t cid = 0; cid < 2; ++cid) {
      auto hello = parameters(cid, 2, id);
      hello.path_uuid.fill(path);
      hello.first_connection = id == path;
      RawClient& connection = cid == 0 ? control : io;
      connection.hello(hello);
      REQUIRE(connection.answer() == 0);
    }
    control.frame(tcp::Opcode::send, 0, 0, 0, 0,
                  wire::bytes_of(wire::encode_info_request("raw" + std::to_string(id))));
    tcp::FrameHeader header;
    REQUIRE(control.hear(std::as_writable_bytes(std::span{&header, 1})));
    response.resize(header.length);
    REQUIRE(control.hear(response));
    const auto descriptor = wire::copy_of<wire::Descriptor>(ConstBytes{response}.subspan(8));
    key = descriptor.key;
    address = descriptor.address;
  }

  /// Writes `bytes` at `offset` of chunk `buffer` and points the immediate at `header_offset`.
  void request(std::uint32_t buffer, std::uint32_t offset, ConstBytes bytes,
               std::uint32_t header_offset) {
    io.frame(tcp::Opcode::write, tcp::kHasImmediate,
             encode(wire::RequestImmediate{buffer, header_offset}, 256),
             address + buffer * std::uint64_t{266'240} + offset, key, bytes);
  }

  /// A write without data, of no more than a message.
  void say(std::uint32_t buffer, std::string_view text) {
    std::vector<std::byte> request(text.size() + sizeof(wire::WriteHeader));
    std::memcpy(request.data(), text.data(), text.size());
    const wire::WriteHeader header{.type = 2,
                                   .user_length = static_cast<std::uint16_t>(text.size())};
    std::memcpy(request.data() + text.size(), &header, sizeof(header));
    this->request(buffer, 0, request, static_cast<std::uint32_t>(text.size()));
  }
  /// The permit that an answer gives back, -1 = the server closed instead.
  int answered() {
    tcp::FrameHeader header;
    if (!io.hear(std::as_writable_bytes(std::span{&header, 1}))) return -1;
    return static_cast<int>(wire::decode_response(header.immediate).buffer_id);
  }

  RawClient control;
  RawClient io;
  std::vector<std::byte> response;
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

/// A socket that listens on a free port, and what to do with those who come.
class Listener {
 public:
  Listener() : socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    auto address = loopback(0);
    socklen_t size = sizeof(address);
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(socket_, raw, size) == 0);
    REQUIRE(listen(socket_, 2) == 0);
    REQUIRE(getsockname(socket_, raw, &size) == 0);
    port = ntohs(address.sin_port);
  }
  ~Listener() { ::close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// -1 after stop().
  int accept() const { return accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC); }
  void stop() const { shutdown(socket_, SHUT_RDWR); }
  /// Drops what a peer says until it leaves.
  static void until_closed(int peer) {
    std::vector<std::byte> scratch(4096);
    while (recv(peer, scratch.data(), scratch.size(), 0) > 0) {
    }
  }
  std::uint16_t port;

 private:
  int socket_;
};

/// A server made of bytes: accepts one connection and says something.
class RawServer {
 public:
  explicit RawServer(std::string greeting)
      : thread_{[this, greeting = std::move(greeting)] {
          const int peer = listener_.accept();
          if (peer < 0) return;
          ::send(peer, greeting.data(), greeting.size(), MSG_NOSIGNAL);
          Listener::until_closed(peer);
          ::close(peer);
        }} {}
  ~RawServer() {
    listener_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return listener_.port; }

 private:
  Listener listener_;
  std::thread thread_;
};

}  // namespace rtrs::test
