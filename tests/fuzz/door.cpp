// SPDX-License-Identifier: BSD-3-Clause
// Input: what a stranger without a key sends to a server that takes TLS and proofs, from its first
// byte on. The checksum of a hello in clear is made right.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "rdma/server.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "tests/fuzz/key_file.hpp"

using namespace rtrs;

namespace {

class NobodyComes final : public ServerHandler {
 public:
  void* on_session_up(ServerSession&) override {
    fuzz::require(false, "nobody comes in without the key");
    return nullptr;
  }
  void on_session_down(ServerSession&) override {}
  void on_request(ServerSession&, ServerRequest&) override {}
};

/// Never destroyed: the process ends around its threads.
class Door {
 public:
  Door() {
    ServerOptions options;
    options.listen = {{.host = "127.0.0.1", .port = 0}};
    options.reactors = 1;
    options.tls = TlsMode::on;
    options.auth = AuthMode::psk;
    options.tls_keys = fuzz::key_of_host1();
    options.features = wire::kFeatureUserMessages | wire::kFeatureExactlyOnce;
    server_ = Server::create(std::move(options), handler_);
    fuzz::require(server_->start().has_value(), "the server starts");
    const std::string address = server_->addresses().front();  // tcp:HOST:PORT
    port_ = static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
  }

  int knock() const {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* any = reinterpret_cast<const sockaddr*>(&address);
    fuzz::require(::connect(socket, any, sizeof(address)) == 0, "the server takes connections");
    return socket;
  }

 private:
  NobodyComes handler_;
  std::unique_ptr<Server> server_;
  std::uint16_t port_ = 0;
};

void make_right(std::vector<std::uint8_t>& said) {
  if (said.size() < sizeof(tcp::Hello) || said[0] != 'R') return;
  const auto bytes = std::as_bytes(std::span{said});
  const std::uint16_t digests = wire::copy_of<tcp::Hello>(bytes).digests;
  const tcp::Hello hello = tcp::make_hello(
      bytes.subspan(offsetof(tcp::Hello, record), sizeof(tcp::Hello::record)), digests);
  std::memcpy(said.data(), &hello, sizeof(hello));
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Door* const door = new Door;
  constexpr std::size_t kFits = 64 << 10;  ///< bytes, without a reader
  std::vector<std::uint8_t> said(data, data + std::min(size, kFits));
  make_right(said);
  const int socket = door->knock();
  (void)::send(socket, said.data(), said.size(), MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
  std::array<char, 4096> answer;
  ssize_t n = 0;
  do {
    n = ::recv(socket, answer.data(), answer.size(), 0);
  } while (n > 0);
  fuzz::require(n == 0 || errno != EAGAIN, "a stranger who has said all is sent away");
  // As one of many it would keep its port for a minute.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  ::close(socket);
  return 0;
}
