// SPDX-License-Identifier: BSD-3-Clause
// Servers that go away and come back, seen from a client with one path.
#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/load.hpp"
#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::outage_test {
namespace {

using namespace std::chrono_literals;
using test::EchoOperation;
using test::EchoServer;
using test::Load;
using test::patient;
using test::TestRecovery;
using test::two_paths;
using test::wait_for_paths;

TEST_CASE("a server that was restarted goes on with what was in flight") {
  TestRecovery recovery;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  auto client = test::connect(patient(port, recovery));
  Load load{*client};
  for (int i = 0; i < 5; ++i) {
    load.wait_for_progress();
    server.reset();
    server.emplace(ServerOptions{}, port);
    load.wait_for_progress();
  }
  load.end();
  CHECK(load.errors == 0);
  CHECK(recovery.asked >= 5);
  CHECK(client->alive());
}

TEST_CASE("requests fail when no path is back in time, and work again when one is") {
  TestRecovery recovery;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  ClientOptions options = patient(port, recovery);
  options.no_path_timeout = 200ms;
  SUBCASE("with EIO") {}
  SUBCASE("with what the user chose, but for what is opened and closed") {
    options.no_path_error = ENOSPC;
  }
  auto client = test::connect(options);
  server.reset();
  std::vector<std::byte> buffer(512);
  for (int i = 0; i < 2; ++i) {
    EchoOperation read{"ab", buffer, {}};
    CHECK(client->run(read, {}) == options.no_path_error);
  }
  EchoOperation control{"ab", buffer, {}};
  CHECK(client->run_control(control, {}) == EIO);
  CHECK(client->alive());
  const auto status = client->paths();
  REQUIRE(status.size() == 1);
  CHECK(status[0].state != PathState::connected);
  CHECK_FALSE(status[0].trouble.empty());
  CHECK_FALSE(status[0].in_use);

  server.emplace(ServerOptions{}, port);
  int error = options.no_path_error;
  while (error == options.no_path_error) {
    EchoOperation again{"ab", buffer, {}};
    error = client->run(again, {});
  }
  CHECK(error == 0);
  CHECK(client->paths()[0].in_use);
}

TEST_CASE("a caller that waits for a path can be interrupted") {
  TestRecovery recovery;
  std::optional<EchoServer> server;
  server.emplace();
  auto client = test::connect(patient(server->port, recovery));
  server.reset();
  std::vector<std::byte> buffer(512);
  const Interrupt now{[](void*) { return true; }, nullptr};
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, now) == EINTR);
  EchoOperation control{"ab", buffer, {}};
  CHECK(client->run_control(control, now) == EINTR);
}

TEST_CASE("a session that a server has forgotten") {
  TestRecovery recovery;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  ClientOptions options = patient(port, recovery);
  std::vector<std::byte> buffer(512);

  SUBCASE("is over when nobody can fill a new one") { options.recovery = nullptr; }
  SUBCASE("is over when something else is there") { recovery.answer = ESTALE; }
  SUBCASE("is over when the server has other limits") {}
  const bool other_limits = options.recovery != nullptr && recovery.answer == 0;

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
  TestRecovery recovery;
  std::optional<EchoServer> server;
  server.emplace();
  const auto port = server->port;
  auto client = test::connect(patient(port, recovery));
  recovery.answer = EPERM;
  server.reset();
  server.emplace(ServerOptions{}, port);
  while (recovery.asked < 3) std::this_thread::yield();
  recovery.answer = 0;
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == 0);
}

TEST_CASE("a path that was disconnected by command stays so until it is told otherwise") {
  TestRecovery recovery;
  EchoServer server;
  ClientOptions options = patient(server.port, recovery);
  options.no_path_timeout = 50ms;
  auto client = test::connect(options);
  REQUIRE(client->disconnect(client->paths()[0].address));
  CHECK(client->paths()[0].state == PathState::disconnected);
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(client->run(read, {}) == EIO);
  REQUIRE(client->reconnect(client->paths()[0].address));
  int error = EIO;
  while (error == EIO) {
    EchoOperation again{"ab", buffer, {}};
    error = client->run(again, {});
  }
  CHECK(error == 0);
}

TEST_CASE("a path that is closed by command is no trouble, and neither is its return") {
  TestRecovery recovery;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  std::mutex mutex;
  std::string infos;
  std::string troubles;
  ClientOptions options = two_paths(server.port, recovery);
  options.log = [&](LogLevel level, const std::string& text) {
    const std::lock_guard lock{mutex};
    (level >= LogLevel::warning ? troubles : infos) += text + "\n";
  };
  auto client = test::connect(options);
  wait_for_paths(*client);
  const PathAddress path = client->paths()[0].address;
  REQUIRE(client->disconnect(path));
  REQUIRE(client->reconnect(path));
  wait_for_paths(*client);
  REQUIRE(client->remove_path(path));
  client.reset();
  CHECK(troubles == "");
  CHECK(infos.find("is closed: disconnected by command") != std::string::npos);
  CHECK(infos.find("is closed: removed by command") != std::string::npos);
}

TEST_CASE("without the extension: who opens is told that it waits for a change that was given up") {
  EchoServer server;
  std::mutex mutex;
  std::string told;
  ClientOptions options = test::client_options(server.port);
  options.heartbeat_interval = 20ms;
  options.heartbeat_misses = 50;  // a busy machine must not end the only path, which beats no more
  options.log = [&](LogLevel, const std::string& text) {
    const std::lock_guard lock{mutex};
    told += text + "\n";
  };
  const auto wait_until_told = [&](const char* what) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    for (; std::chrono::steady_clock::now() < end; std::this_thread::yield()) {
      const std::lock_guard lock{mutex};
      if (told.find(what) != std::string::npos) return;
    }
    const std::lock_guard lock{mutex};
    FAIL_CHECK("nobody has told '", what, "', but:\n", told);
  };
  auto client = test::connect(options);
  std::atomic<bool> left{false};
  const Interrupt leaves{
      [](void* context) { return static_cast<std::atomic<bool>*>(context)->load(); }, &left};
  std::vector<std::byte> buffer(512);
  std::thread writer{[&] {
    EchoOperation hangs{"H", {}, buffer};
    CHECK(client->run(hangs, leaves) == EINTR);
  }};
  while (server.handler.held == nullptr) std::this_thread::yield();
  left = true;
  writer.join();
  SUBCASE("and waits") {}
  SUBCASE("although the one before has left") {
    std::atomic<bool> told_once{false};
    std::thread impatient{[&] {
      std::vector<std::byte> answer(512);
      EchoOperation open{"ab", answer, {}};
      const Interrupt when_told{
          [](void* context) { return static_cast<std::atomic<bool>*>(context)->load(); },
          &told_once};
      CHECK(client->run_control(open, when_told) == EINTR);
    }};
    wait_until_told("waits until the server has ended changes");
    told_once = true;
    impatient.join();
    std::this_thread::sleep_for(100ms);  // some heartbeats
    const std::lock_guard lock{mutex};
    CHECK(told.find("devices can be opened again") == std::string::npos);
  }
  std::atomic<int> opened{-1};
  std::thread opener{[&] {
    std::vector<std::byte> answer(512);
    EchoOperation open{"ab", answer, {}};
    opened = client->run_control(open, {});
  }};
  wait_until_told("waits until the server has ended changes");
  CHECK(opened == -1);
  boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                    [&] { server.handler.held.load()->finish(0); });
  opener.join();
  CHECK(opened == 0);
  wait_until_told("devices can be opened again");
}

TEST_CASE("two paths: what is in flight goes over the other one, and both are used again") {
  TestRecovery recovery;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  auto client = test::connect(two_paths(server.port, recovery));
  wait_for_paths(*client);
  Load load{*client};
  for (unsigned i = 0; i < 6; ++i) {
    REQUIRE(client->disconnect(client->paths()[i % 2].address));
    load.wait_for_progress();
    REQUIRE(client->reconnect(client->paths()[i % 2].address));
    client->set_policy(static_cast<PathPolicy>(i % 3));
    wait_for_paths(*client);
    load.wait_for_progress();
  }
  load.end();
  CHECK(load.errors == 0);
  CHECK(recovery.asked == 0);
  for (const PathStatus& path : client->paths()) {
    CHECK(path.requests > 0);
    CHECK(path.in_flight == 0);
  }
}

TEST_CASE("an attempt to connect ends with its path") {
  TestRecovery recovery;
  EchoServer server;
  const test::Listener silent;
  ClientOptions options = patient(server.port, recovery);
  options.connect_timeout = 60s;
  options.paths.push_back(options.paths[0]);
  options.paths[1].port = silent.port;
  auto client = test::connect(options);
  const int peer = silent.accept();
  const auto began = std::chrono::steady_clock::now();
  REQUIRE(client->disconnect(options.paths[1]));
  test::Listener::until_closed(peer);
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  ::close(peer);
  CHECK(client->alive());
}

TEST_CASE("two paths: a control message that waited for a permit leaves, whatever path it takes") {
  TestRecovery recovery;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  server_options.queue_depth = 8;  // one permit for control messages
  EchoServer server{server_options};
  auto client = test::connect(two_paths(server.port, recovery));
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
}  // namespace rtrs::outage_test
