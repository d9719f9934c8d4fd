// SPDX-License-Identifier: BSD-3-Clause
// Client and Server over real sockets, with real threads. Run under TSan too.
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "rdma/transport/server/options.hpp"
#include "tests/unit/transport/echo.hpp"

namespace rtrs::test::session_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a session carries reads, writes and errors on lanes and on connection 0") {
  EchoServer server;
  auto client = connect(client_options(server.port));
  CHECK(client->alive());
  CHECK(client->limits().queue_depth == 256);
  CHECK(client->limits().max_io_size == 256 * 1024);

  std::vector<std::byte> buffer(10'000);
  EchoOperation read{"abc", buffer, {}};
  CHECK(client->run(read, {}) == 0);
  CHECK(buffer[0] == std::byte{3});
  CHECK(buffer[9'999] == static_cast<std::byte>(3 + 9'999));

  EchoOperation write{"w", {}, buffer};
  CHECK(client->run(write, {}) == 0);
  CHECK(server.handler.bytes_written == 10'000);

  EchoOperation refused{"E28", buffer, {}};
  CHECK(client->run(refused, {}) == ENOSPC);

  EchoOperation control{"c", MutableBytes{buffer}.first(36), {}};
  CHECK(client->run_control(control, {}) == 0);
  CHECK(buffer[0] == std::byte{1});
  EchoOperation flush{"f", {}, {}};
  CHECK(client->run(flush, {}) == 0);
}

TEST_CASE("many threads share the lanes, and each gets its own answer") {
  EchoServer server;
  auto client = connect(client_options(server.port));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 12; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 300; ++i) {
        const std::string message(1 + (t * 31 + i) % 200, 'x');
        std::vector<std::byte> buffer(1 + (t * 977 + i * 131) % 30'000);
        if (i % 3 == 0) {
          EchoOperation write{message, {}, buffer};
          wrong += client->run(write, {}) != 0;
          continue;
        }
        EchoOperation read{message, buffer, {}};
        const int error = i % 50 == 1 ? client->run_control(read, {}) : client->run(read, {});
        wrong += error != 0 ||
                 buffer.back() != static_cast<std::byte>(message.size() + buffer.size() - 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(client->alive());
}

TEST_CASE("requests wait for permits when there are fewer than callers") {
  ServerOptions options;
  SUBCASE("one permit for everything") { options.queue_depth = 1; }
  SUBCASE("two") { options.queue_depth = 2; }
  SUBCASE("five") { options.queue_depth = 5; }
  EchoServer server{options};
  auto client = connect(client_options(server.port));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      std::vector<std::byte> buffer(5'000);
      for (unsigned i = 0; i < 100; ++i) {
        EchoOperation read{"abcd", buffer, {}};
        wrong += (i % 10 == 0 ? client->run_control(read, {}) : client->run(read, {})) != 0;
        wrong += buffer[4'999] != static_cast<std::byte>(4 + 4'999);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("an interrupted caller leaves, and the session works on") {
  EchoServer server;
  auto client = connect(client_options(server.port));
  std::atomic<bool> asked{false};
  const Interrupt interrupt{
      [](void* context) { return static_cast<std::atomic<bool>*>(context)->load(); }, &asked};
  for (const bool control : {false, true}) {
    CAPTURE(control);
    asked = false;
    server.handler.held = nullptr;
    std::vector<std::byte> buffer(4096);
    std::atomic<int> result{-1};
    std::thread caller{[&] {
      EchoOperation hangs{"H", buffer, {}};
      result = control ? client->run_control(hangs, interrupt) : client->run(hangs, interrupt);
    }};
    while (server.handler.held == nullptr) std::this_thread::yield();
    asked = true;
    caller.join();
    CHECK(result == EINTR);
    std::fill(buffer.begin(), buffer.end(), std::byte{0xEE});

    // The late answer must not touch the memory of the caller that left.
    boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                      [&] { server.handler.held.load()->finish(0); });
    std::vector<std::byte> other(4096);
    EchoOperation read{"ab", other, {}};
    CHECK((control ? client->run_control(read, {}) : client->run(read, {})) == 0);
    CHECK(buffer == std::vector<std::byte>(4096, std::byte{0xEE}));
  }
  CHECK(client->alive());
}

TEST_CASE("a caller whose answer does not come can leave while others keep its lane busy") {
  EchoServer server;
  auto options = client_options(server.port);
  options.lanes = 1;
  auto client = connect(options);
  std::atomic<bool> left{false};
  std::thread caller{[&] {
    std::vector<std::byte> buffer(64);
    EchoOperation hangs{"H", buffer, {}};
    CHECK(client->run(hangs, Interrupt{[](void*) { return true; }, nullptr}) == EINTR);
    left = true;
  }};
  while (server.handler.held == nullptr) std::this_thread::yield();
  const auto patience = std::chrono::steady_clock::now() + 20s;
  while (!left && std::chrono::steady_clock::now() < patience) {
    std::vector<std::byte> buffer(64);
    EchoOperation read{"x", buffer, {}};
    CHECK(client->run(read, {}) == 0);
  }
  CHECK(left);
  caller.join();
  boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                    [&] { server.handler.held.load()->finish(0); });
}

TEST_CASE("a server stops at once when nothing runs, and says so when something hangs") {
  EchoServer server;
  ClientOptions options = client_options(server.port);
  options.no_path_timeout = 50ms;
  auto client = connect(options);
  SUBCASE("nothing runs") { CHECK(server.server->stop(5s)); }
  SUBCASE("a request hangs") {
    std::vector<std::byte> buffer(64);
    std::thread caller{[&] {
      EchoOperation hangs{"H", buffer, {}};
      CHECK(client->run(hangs, {}) == EIO);
    }};
    while (server.handler.held == nullptr) std::this_thread::yield();
    CHECK_FALSE(server.server->stop(50ms));
    caller.join();
    // The backend answers after all; only then may the server die.
    server.handler.held.load()->finish(0);
    CHECK(server.handler.sessions == 0);
  }
}

TEST_CASE("a server that stopped listens no more, however often it is told to stop") {
  for (int i = 0; i < 20; ++i) {
    EchoServer server;
    REQUIRE(server.server->stop(5s));
    auto options = client_options(server.port);
    options.connect_timeout = 100ms;
    const auto late = Client::connect(std::move(options), {});
    REQUIRE_FALSE(late.has_value());
    CHECK(late.error().error == ECONNREFUSED);
    CHECK(server.server->stop(0s));
  }
}

TEST_CASE("options that cannot work are refused with the way out") {
  ServerOptions options;
  options.listen = {{TransportKind::tcp, "127.0.0.1", 0}};
  SUBCASE("no heartbeat interval") { options.heartbeat_interval = 0s; }
  SUBCASE("no handshake deadline") { options.handshake_timeout = 0s; }
  EchoHandler handler;
  const auto server = Server::create(options, handler);
  const auto started = server->start();
  REQUIRE_FALSE(started.has_value());
  CHECK(started.error().error == EINVAL);
}

TEST_CASE("as many handshakes are under way as clients come at once after a restart") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const auto handshakes = [&](unsigned connections, rlim_t descriptors) {
    const rlimit limit{std::min(descriptors, before.rlim_max), before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    ServerOptions options;
    options.max_connections = connections;
    return with_defaults(options).max_handshakes;
  };
  CHECK(handshakes(100, 16384) == 64);
  CHECK(handshakes(2000, 16384) == 500);
  CHECK(handshakes(100000, 16384) == 1024);
  CHECK(handshakes(100000, 4096) == 256);
  CHECK(handshakes(100000, 128) == 64);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  ServerOptions options;
  options.max_handshakes = 7;
  CHECK(with_defaults(options).max_handshakes == 7);
}

TEST_CASE("sessions come and go without leaving anything at the server") {
  EchoServer server;
  for (int i = 0; i < 20; ++i) {
    auto client = connect(client_options(server.port));
    EchoOperation read{"x", {}, {}};
    CHECK(client->run(read, {}) == 0);
  }
  while (server.handler.sessions != 0) std::this_thread::yield();
  CHECK(server.handler.sessions == 0);
}

TEST_CASE("idle sessions stay, because heartbeats are answered") {
  // RDMA is emulated guests, which stand still for a moment now and then.
  const Duration interval = test_transport().kind == TransportKind::rdma ? 500ms : 20ms;
  ServerOptions options;
  options.heartbeat_interval = interval;
  EchoServer server{options};
  auto client_side = client_options(server.port);
  client_side.heartbeat_interval = interval;
  auto client = connect(client_side);
  std::this_thread::sleep_for(15 * interval);
  CHECK(client->alive());
  EchoOperation read{"x", {}, {}};
  CHECK(client->run(read, {}) == 0);
}

}  // namespace
}  // namespace rtrs::test::session_test
