// SPDX-License-Identifier: BSD-3-Clause
// Input: what an NBD client sends, from its first byte on. A whole rnbd-bridge is behind it, with
// its server and 256 KiB of storage, all in this process; each input is a connection of its own.
// The storage is zeros again before each, so that an input does the same every time.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/daemon/server/blocking_pool.hpp"
#include "bridge/nbd/front.hpp"
#include "bridge/server/block_server.hpp"
#include "rdma/server.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kStorage = 256 << 10;  ///< bytes
constexpr auto kPatience = 10s;                ///< for a connection whose client says no more

/// Storage, server, client and NBD front. Never destroyed: the process ends around its threads.
class Bridge {
 public:
  Bridge() {
    auto listeners = nbd::Listener::open({.path = path_, .host = {}});
    fuzz::require(listeners.has_value(), "the front listens");
    front_ = std::make_unique<nbd::Front>(exports_, std::move(*listeners), nbd::FrontOptions{});
    front_->start();
    front_->open_door();
    auto device = connections_.open("disk0", /*readonly=*/false, {});
    fuzz::require(device.has_value(), "the device opens");
    device_ = *device;
  }

  /// Also shows that the server still serves.
  void clear() {
    const std::vector<std::byte> zeros(kStorage);
    fuzz::require(device_->write(0, zeros, /*fua=*/false, {}) == 0, "a good client can write");
  }

  void remove_socket() const { ::unlink(path_.c_str()); }

  int connect() const {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const auto* any = reinterpret_cast<const sockaddr*>(&address);
    fuzz::require(::connect(socket, any, sizeof(address)) == 0, "the front takes a client");
    return socket;
  }

 private:
  std::unique_ptr<rtrs::Server> start_server() {
    ExportSpecification disk;
    disk.name = "disk0";
    disk.storage = "memory:" + std::to_string(kStorage);
    fuzz::require(catalogue_.add(disk).has_value(), "the storage can be made");
    rtrs::ServerOptions options;
    options.listen = {{.host = "127.0.0.1", .port = 0}};
    options.reactors = 1;
    options.features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce;
    auto server = rtrs::Server::create(std::move(options), handler_);
    fuzz::require(server->start().has_value(), "the server starts");
    return server;
  }
  ClientConfig make_config() const {
    const std::string address = server_->addresses().front();  // tcp:HOST:PORT
    const auto port =
        static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
    ClientConfig config;
    config.paths.push_back({.source = {}, .host = "127.0.0.1", .port = port});
    config.device = "disk0";
    config.lanes = 1;
    return config;
  }

  const std::string path_ = "/tmp/fuzz-nbd-client." + std::to_string(::getpid());
  ExportCatalogue catalogue_{{}};
  BlockingPool pool_{std::make_shared<rtrs::ClientLog>(nullptr)};
  BlockServer handler_{catalogue_, {}, pool_};
  std::unique_ptr<rtrs::Server> server_ = start_server();
  const ClientConfig config_ = make_config();
  Connections connections_{config_, {}};
  nbd::Exports exports_{config_, connections_};
  std::unique_ptr<nbd::Front> front_;
  Disk* device_ = nullptr;
};

Bridge& bridge() {
  static Bridge* it = nullptr;
  if (it == nullptr) {
    it = new Bridge;
    std::atexit([] { it->remove_socket(); });
  }
  return *it;
}

/// Sends everything, reads everything, and leaves when the front hangs up. Returns the answer's
/// first bytes.
std::string converse(int socket, const std::uint8_t* data, std::size_t size) {
  std::string answer;
  std::size_t sent = 0;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  static std::array<char, 1 << 20> buffer;
  for (;;) {
    pollfd poll{.fd = socket, .events = POLLIN, .revents = 0};
    if (sent < size) poll.events |= POLLOUT;
    ::poll(&poll, 1, 1000);
    fuzz::require(std::chrono::steady_clock::now() < deadline, "a client that left is let go");
    if ((poll.revents & POLLOUT) != 0) {
      const ssize_t n = ::send(socket, data + sent, size - sent, MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n < 0 && errno != EAGAIN) sent = size;  // the front has hung up
      if (sent == size) ::shutdown(socket, SHUT_WR);
    }
    if ((poll.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    const ssize_t n = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return answer;
    if (n > 0 && answer.size() < 64) answer.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bridge().clear();
  const int socket = bridge().connect();
  if (size == 0) ::shutdown(socket, SHUT_WR);
  const std::string answer = converse(socket, data, size);
  ::close(socket);
  fuzz::require(answer.starts_with("NBDMAGICIHAVEOPT"), "the front greets first");
  return 0;
}
