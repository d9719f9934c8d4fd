// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/front.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bridge/nbd/handshake_socket.hpp"

namespace front_test {

using namespace rnbd;
using namespace rnbd::nbd;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

/// A front with one export, of a server that is not there.
struct World {
  explicit World(unsigned max_connections = 256) {
    config.device = "disk0";
    auto listeners = Listener::open({.path = path, .host = {}});
    REQUIRE(listeners.has_value());
    front = std::make_unique<Front>(
        exports, std::move(*listeners),
        FrontOptions{.max_connections = max_connections,
                     .log = [this](rtrs::LogLevel level, const std::string& line) {
                       const std::lock_guard lock{mutex};
                       if (level != rtrs::LogLevel::debug) said.push_back(line);
                     }});
    front->start();
    front->open_door();
  }
  ~World() { ::unlink(path.c_str()); }

  const std::string path = "/tmp/unit-nbd-front." + std::to_string(::getpid());
  ClientConfig config;
  Connections connections{config, {}};
  Exports exports{config, connections};
  std::mutex mutex;
  std::vector<std::string> said;  ///< guarded by mutex
  std::unique_ptr<Front> front;
};

/// A client that has answered the greeting.
class Client {
 public:
  explicit Client(const World& world) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    world.path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    Greeting greeting;
    REQUIRE(receive(&greeting, sizeof(greeting)));
    REQUIRE(send(bytes_of(big_uint32_t{kFixedNewstyle | kNoZeroes})));
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(const std::string& bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool receive(void* data, std::size_t size) const {
    return size == 0 || ::recv(fd_, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  bool send_option(std::uint32_t option, const std::string& data) const {
    OptionHeader header;
    header.magic = kOptionMagic;
    header.option = option;
    header.length = static_cast<std::uint32_t>(data.size());
    return send(bytes_of(header) + data);
  }
  /// The text of the reply; `type` is what it is. False: the front has hung up.
  bool receive_reply(std::uint32_t& type, std::string& text) const {
    OptionReply reply;
    if (!receive(&reply, sizeof(reply))) return false;
    type = reply.type;
    text.resize(reply.length);
    return receive(text.data(), text.size());
  }

 private:
  int fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

std::string go(const std::string& name) {
  return bytes_of(big_uint32_t{static_cast<std::uint32_t>(name.size())}) + name + "\0\0"s;
}

}  // namespace

TEST_CASE("front: a client that keeps sending options does not keep it from stopping") {
  World world;
  const Client client{world};
  std::atomic<unsigned> answered{0};
  std::thread busy{[&] {
    const auto end = std::chrono::steady_clock::now() + 20s;
    std::uint32_t type = 0;
    std::string text;
    // Two at a time, so that the front always finds one.
    if (!client.send_option(99, {})) return;
    while (std::chrono::steady_clock::now() < end && client.send_option(99, {}) &&
           client.receive_reply(type, text)) {
      ++answered;
    }
  }};
  while (answered < 100) std::this_thread::yield();
  const auto began = std::chrono::steady_clock::now();
  world.front->stop(0ms);
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  busy.join();
}

TEST_CASE("front: of a crowd that chooses no export the oldest makes room for the next client") {
  constexpr unsigned kMost = 4;
  World world{kMost};
  std::vector<std::unique_ptr<Client>> crowd;
  for (unsigned i = 0; i < 10 * kMost; ++i) {
    // It is greeted, or this ends here.
    crowd.push_back(std::make_unique<Client>(world));
    if (i < kMost) continue;
    char none = 0;
    CHECK_FALSE(crowd[i - kMost]->receive(&none, 1));
  }
  for (auto newest = crowd.end() - kMost; newest != crowd.end(); ++newest) {
    CHECK((*newest)->send_option(99, ""));
    OptionReply answer;
    CHECK((*newest)->receive(&answer, sizeof(answer)));
  }
}

TEST_CASE("front: a name that nobody has is told in few words, and not as it came") {
  World world;
  const Client client{world};
  const auto names = {std::string(4096, 'n'), "line\nrnbd-bridge: forged"s, "\x1b[2J"s, "\0"s,
                      std::string(254, 'n')};
  for (const std::string& name : names) {
    std::uint32_t type = 0;
    std::string text;
    REQUIRE(client.send_option(static_cast<std::uint32_t>(Option::go), go(name)));
    REQUIRE(client.receive_reply(type, text));
    CHECK(type == static_cast<std::uint32_t>(Reply::unknown));
    CHECK(text.size() < 512);
    CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
  const std::lock_guard lock{world.mutex};
  CHECK(world.said.size() == names.size());
  for (const std::string& line : world.said) {
    CHECK(line.size() < 512);
    CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

TEST_CASE("front: a client that asks for the wrong export without end does not fill the log") {
  World world;
  const Client client{world};
  std::uint32_t type = 0;
  std::string text;
  for (unsigned i = 0; i < 2000; ++i) {
    REQUIRE(client.send_option(static_cast<std::uint32_t>(Option::go), go("wrong")));
    REQUIRE(client.receive_reply(type, text));
  }
  const std::lock_guard lock{world.mutex};
  CHECK(world.said.size() >= 1);
  CHECK(world.said.size() < 50);
}

}  // namespace front_test
