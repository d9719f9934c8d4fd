// Servers that go away and come back, seen from a client with one path.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs {
namespace {

using namespace std::chrono_literals;
using test::client_options;
using test::EchoOperation;
using test::EchoServer;

/// A session above which nothing was open: a server that has forgotten it is asked one question.
class Keeper final : public SessionKeeper {
 public:
  std::unique_ptr<Operation> reopen(const SessionLimits&) override {
    ++asked;
    return std::make_unique<EchoOperation>("E" + std::to_string(answer), MutableBytes{},
                                           ConstBytes{});
  }
  int reopened(Operation& operation) override { return operation.error(); }
  std::unique_ptr<Operation> errand() override {
    if (errands == 0) return nullptr;
    return std::make_unique<EchoOperation>("E0", MutableBytes{}, ConstBytes{});
  }
  void errand_ended(Operation& operation) override {
    if (operation.error() == 0) --errands;
  }

  std::atomic<int> asked{0};
  std::atomic<int> answer{0};
  std::atomic<int> errands{0};
};

ClientOptions patient(std::uint16_t port, Keeper& keeper) {
  ClientOptions options = client_options(port);
  options.keeper = &keeper;
  options.reconnect_min = 5ms;
  options.reconnect_max = 50ms;
  return options;
}

/// Writes and reads until told to stop; counts what went wrong.
class Load {
 public:
  explicit Load(Client& client) {
    for (int i = 0; i < 4; ++i) {
      threads_.emplace_back([this, &client] {
        std::vector<std::byte> buffer(4096);
        while (!stop_) {
          EchoOperation read{"ab", buffer, {}};
          if (client.run(read, {}) != 0) ++errors;
          EchoOperation write{"w", {}, buffer};
          if (client.run(write, {}) != 0) ++errors;
          ++rounds;
        }
      });
    }
  }
  ~Load() { end(); }
  void end() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }
  /// Until every thread has got something through from now on.
  void wait_for_progress() const {
    const auto goal = rounds + 40;
    while (rounds < goal) std::this_thread::yield();
  }

  std::atomic<int> errors{0};
  std::atomic<std::uint64_t> rounds{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST_CASE("a server that was restarted goes on with what was in flight") {
  Keeper keeper;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  auto client = test::connect(patient(port, keeper));
  Load load{*client};
  for (int i = 0; i < 5; ++i) {
    load.wait_for_progress();
    server.reset();
    server.emplace(ServerOptions{}, port);
    load.wait_for_progress();
  }
  load.end();
  CHECK(load.errors == 0);
  CHECK(keeper.asked >= 5);
  CHECK(client->alive());
}

TEST_CASE("requests fail when no path is back in time, and work again when one is") {
  Keeper keeper;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  ClientOptions options = patient(port, keeper);
  options.no_path_timeout = 200ms;
  auto client = test::connect(options);
  server.reset();
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == EIO);
  EchoOperation control{"ab", buffer, {}};
  CHECK(client->run_control(control, {}) == EIO);
  CHECK(client->alive());
  const auto status = client->paths();
  REQUIRE(status.size() == 1);
  CHECK(status[0].state != PathState::connected);
  CHECK_FALSE(status[0].trouble.empty());
  CHECK_FALSE(status[0].in_use);

  server.emplace(ServerOptions{}, port);
  int error = EIO;
  while (error == EIO) {
    EchoOperation again{"ab", buffer, {}};
    error = client->run(again, {});
  }
  CHECK(error == 0);
  CHECK(client->paths()[0].in_use);
}

TEST_CASE("a caller that waits for a path can be interrupted") {
  Keeper keeper;
  std::optional<EchoServer> server;
  server.emplace();
  auto client = test::connect(patient(server->port, keeper));
  server.reset();
  std::vector<std::byte> buffer(512);
  const Interrupt now{[](void*) { return true; }, nullptr};
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, now) == EINTR);
  EchoOperation control{"ab", buffer, {}};
  CHECK(client->run_control(control, now) == EINTR);
}

TEST_CASE("a session that a server has forgotten") {
  Keeper keeper;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  ClientOptions options = patient(port, keeper);
  std::vector<std::byte> buffer(512);

  SUBCASE("is over when nobody can fill a new one") { options.keeper = nullptr; }
  SUBCASE("is over when something else is there") { keeper.answer = ESTALE; }
  SUBCASE("is over when the server has other limits") {}
  const bool other_limits = options.keeper != nullptr && keeper.answer == 0;

  auto client = test::connect(options);
  server.reset();
  ServerOptions limits;
  if (other_limits) limits.queue_depth = 16;
  server.emplace(limits, port);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == EIO);
  CHECK_FALSE(client->alive());
  CHECK_FALSE(client->failure().empty());
  EchoOperation control{"ab", buffer, {}};
  CHECK(client->run_control(control, {}) == EIO);
}

TEST_CASE("a new session that cannot be filled yet is tried again") {
  Keeper keeper;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  auto client = test::connect(patient(port, keeper));
  keeper.answer = EPERM;
  server.reset();
  server.emplace(ServerOptions{}, port);
  while (keeper.asked < 3) std::this_thread::yield();
  keeper.answer = 0;
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == 0);
}

TEST_CASE("a path that was disconnected by command stays so until it is told otherwise") {
  Keeper keeper;
  EchoServer server;
  ClientOptions options = patient(server.port, keeper);
  options.no_path_timeout = 50ms;
  auto client = test::connect(options);
  client->disconnect(0);
  CHECK(client->paths()[0].state == PathState::disconnected);
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == EIO);
  client->reconnect(0);
  int error = EIO;
  while (error == EIO) {
    EchoOperation again{"ab", buffer, {}};
    error = client->run(again, {});
  }
  CHECK(error == 0);
}

TEST_CASE("what was left to do while there was no path is done when one is back") {
  Keeper keeper;
  EchoServer server;
  auto client = test::connect(patient(server.port, keeper));
  client->disconnect(0);
  keeper.errands = 3;
  client->reconnect(0);
  while (keeper.errands > 0) std::this_thread::yield();
  CHECK(client->paths()[0].requests == 3);
}

/// Two paths to the same server; they differ in how they are written only.
ClientOptions two_paths(std::uint16_t port, Keeper& keeper) {
  ClientOptions options = patient(port, keeper);
  PathAddress second = options.paths[0];
  second.source = second.host;
  options.paths.push_back(second);
  options.features = wire::kFeatureExactlyOnce;
  options.policy = PathPolicy::round_robin;
  return options;
}

void wait_for_paths(Client& client) {
  for (;;) {
    const auto paths = client.paths();
    if (std::ranges::all_of(paths, [](const PathStatus& path) { return path.in_use; })) return;
    std::this_thread::yield();
  }
}

TEST_CASE("two paths: what is in flight goes over the other one, and both are used again") {
  Keeper keeper;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  auto client = test::connect(two_paths(server.port, keeper));
  wait_for_paths(*client);
  Load load{*client};
  for (unsigned i = 0; i < 6; ++i) {
    client->disconnect(i % 2);
    load.wait_for_progress();
    client->reconnect(i % 2);
    client->set_policy(static_cast<PathPolicy>(i % 3));
    wait_for_paths(*client);
    load.wait_for_progress();
  }
  load.end();
  CHECK(load.errors == 0);
  CHECK(keeper.asked == 0);
  for (const PathStatus& path : client->paths()) {
    CHECK(path.requests > 0);
    CHECK(path.in_flight == 0);
  }
}

TEST_CASE("an attempt to connect ends with its path") {
  Keeper keeper;
  EchoServer server;
  const test::Listener silent;
  ClientOptions options = patient(server.port, keeper);
  options.connect_timeout = 60s;
  options.paths.push_back(options.paths[0]);
  options.paths[1].port = silent.port;
  auto client = test::connect(options);
  const int peer = silent.accept();
  const auto began = std::chrono::steady_clock::now();
  client->disconnect(1);
  test::Listener::until_closed(peer);
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  ::close(peer);
  CHECK(client->alive());
}

TEST_CASE("two paths: a control message that waited for a permit leaves, whatever path it takes") {
  Keeper keeper;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  server_options.queue_depth = 8;  // one permit for control messages
  EchoServer server{server_options};
  auto client = test::connect(two_paths(server.port, keeper));
  wait_for_paths(*client);
  std::vector<std::thread> callers;
  std::atomic<int> errors{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      std::vector<std::byte> buffer(64);
      for (int n = 0; n < 100; ++n) {
        EchoOperation question{"ab", buffer, {}};
        if (client->run_control(question, {}) != 0) ++errors;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(errors == 0);
}

}  // namespace
}  // namespace rtrs
