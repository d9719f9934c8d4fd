// SPDX-License-Identifier: BSD-3-Clause
// Paths that are added to a session and removed from it while it works.
#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <thread>

#include "rdma/path_list.hpp"
#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/load.hpp"

namespace rtrs::paths_test {
namespace {

using namespace std::chrono_literals;
using test::EchoOperation;
using test::EchoServer;
using test::Load;
using test::TestRecovery;
using test::two_paths;
using test::wait_for_paths;

ServerOptions server_options(bool once) {
  ServerOptions options;
  if (once) options.features = wire::kFeatureExactlyOnce;
  return options;
}

/// A server and a session with the first of two paths; `once`: both are rnbdkit's.
struct Bench {
  explicit Bench(bool once)
      : server{server_options(once)}, options{two_paths(server.port, recovery)} {
    second = options.paths[1];
    options.paths.pop_back();
    if (!once) options.features = 0;
    client = test::connect(options);
    first = options.paths[0];
  }
  /// Once the path is there.
  PathStatus status(const PathAddress& path) {
    for (PathStatus& status : client->paths()) {
      if (status.address == path) return status;
    }
    FAIL("there is no path " << to_string(path));
    return {};
  }
  void wait_until_gone(const PathAddress& path) {
    const auto is_it = [&](const PathStatus& status) { return status.address == path; };
    while (std::ranges::any_of(client->paths(), is_it)) std::this_thread::yield();
  }
  /// Nobody listens on these ports.
  PathAddress nowhere(std::uint16_t port) const {
    PathAddress path = first;
    path.port = port;
    return path;
  }

  TestRecovery recovery;
  EchoServer server;
  ClientOptions options;
  PathAddress first;
  PathAddress second;
  std::unique_ptr<Client> client;
};

int error_of(const tl::expected<void, Failure>& result) {
  if (!result) CHECK_FALSE(result.error().text.empty());
  return result ? 0 : result.error().error;
}

TEST_CASE("a session moves from path to path under load") {
  for (const bool once : {true, false}) {
    CAPTURE(once);
    Bench bench{once};
    Load load{*bench.client};
    load.wait_for_progress();
    PathAddress there = bench.first;
    PathAddress other = bench.second;
    for (int i = 0; i < 6; ++i) {
      REQUIRE(bench.client->add_path(other));
      wait_for_paths(*bench.client);
      load.wait_for_progress();
      CHECK(bench.status(other).requests > 0);
      REQUIRE(bench.client->remove_path(there));
      bench.wait_until_gone(there);
      load.wait_for_progress();
      std::swap(there, other);
    }
    load.end();
    CHECK(load.errors == 0);
    CHECK(bench.recovery.asked == 0);
    REQUIRE(bench.client->paths().size() == 1);
    CHECK(bench.client->paths()[0].in_flight == 0);
    CHECK(bench.server.handler.sessions == 1);
  }
}

TEST_CASE("the preferred of the paths that work is used, and may change under load") {
  Bench bench{true};
  bench.options.settle_time = 0ms;
  bench.options.paths[0].preference = 1;
  bench.second.preference = 2;
  bench.client.reset();
  bench.client = test::connect(bench.options);
  Load load{*bench.client};
  const auto used = [&](const PathAddress& path) { return bench.status(path).in_use; };
  const auto wait_until = [&](bool first, bool second) {
    while (used(bench.first) != first || used(bench.second) != second) std::this_thread::yield();
  };
  REQUIRE(used(bench.first));
  REQUIRE(bench.client->add_path(bench.second));
  wait_until(false, true);
  CHECK(bench.status(bench.second).address.preference == 2);

  REQUIRE(bench.client->disconnect(bench.second));
  wait_until(true, false);
  REQUIRE(bench.client->reconnect(bench.second));
  wait_until(false, true);

  REQUIRE(bench.client->remove_path(bench.second));
  bench.wait_until_gone(bench.second);
  bench.second.preference = 1;
  REQUIRE(bench.client->add_path(bench.second));
  wait_until(true, true);
}

TEST_CASE("what an event loop has under way goes on over a path that is added") {
  Bench bench{true};
  const auto loop = bench.client->take_lane(0);
  std::vector<std::byte> buffer(512);
  EchoOperation operation{"ab", buffer, {}};
  LaneLoop::Job job;
  job.operation = &operation;
  REQUIRE(bench.client->disconnect(bench.first));
  loop->start(job);
  loop->flush();
  REQUIRE(bench.client->add_path(bench.second));
  while (loop->collect() != &job) {
    std::vector<pollfd> polled;
    loop->watch(polled);
    ::poll(polled.data(), polled.size(), -1);
    loop->progress(polled);
  }
  CHECK(operation.error() == 0);
  CHECK(bench.status(bench.second).requests == 1);
}

TEST_CASE("a path that leads nowhere is seen to try, with its trouble, and can be removed") {
  Bench bench{true};
  const PathAddress nowhere = bench.nowhere(1);
  REQUIRE(bench.client->add_path(nowhere));
  while (bench.status(nowhere).trouble.empty()) std::this_thread::yield();
  const PathStatus status = bench.status(nowhere);
  CHECK((status.state == PathState::connecting || status.state == PathState::waiting));
  CHECK_FALSE(status.in_use);
  CHECK_FALSE(status.access.has_value());
  CHECK(bench.status(bench.first).access == wire::PathAccess::optimized);
  REQUIRE(bench.client->remove_path(nowhere));
  CHECK(bench.client->paths().size() == 1);
  std::vector<std::byte> buffer(512);
  EchoOperation read{"ab", buffer, {}};
  CHECK(bench.client->run(read, {}) == 0);
}

TEST_CASE("an attempt that fails before it waits for anything harms nobody else") {
  Bench bench{true};
  PathAddress foreign = bench.second;
  foreign.source = "192.0.2.1";  // no host has it: documentation
  REQUIRE(bench.client->add_path(foreign));
  while (bench.status(foreign).trouble.empty()) std::this_thread::yield();
  CHECK(bench.status(foreign).trouble.find("192.0.2.1") != std::string::npos);
  std::vector<std::byte> buffer(512);
  for (int i = 0; i < 50; ++i) {  // while it tries again and again
    EchoOperation read{"ab", buffer, {}};
    CHECK(bench.client->run(read, {}) == 0);
    std::this_thread::sleep_for(2ms);
  }
  CHECK(bench.client->alive());
  CHECK(bench.client->failure().empty());
}

TEST_CASE("what cannot be done with paths is refused, and changes nothing") {
  Bench bench{true};
  Client& client = *bench.client;
  CHECK(error_of(client.add_path(bench.first)) == EEXIST);
  CHECK(error_of(client.remove_path(bench.first)) == EBUSY);
  CHECK(error_of(client.remove_path(bench.second)) == ENOENT);
  CHECK(error_of(client.disconnect(bench.second)) == ENOENT);
  CHECK(error_of(client.reconnect(bench.second)) == ENOENT);
  bench.second.preference = kMaxPreference + 1;
  CHECK(error_of(client.add_path(bench.second)) == EINVAL);
  for (std::uint16_t port = 1; port < kMaxPaths; ++port) {
    CHECK(error_of(client.add_path(bench.nowhere(port))) == 0);
  }
  CHECK(error_of(client.add_path(bench.nowhere(100))) == ENOSPC);
  CHECK(client.paths().size() == kMaxPaths);
  REQUIRE(client.remove_path(bench.nowhere(3)));
  CHECK(error_of(client.add_path(bench.nowhere(100))) == 0);
  CHECK(bench.status(bench.first).in_use);
}

TEST_CASE("the numbers of a removed path are not those of the next one") {
  Bench bench{true};
  REQUIRE(bench.client->add_path(bench.second));
  wait_for_paths(*bench.client);
  std::vector<std::byte> buffer(512);
  for (int i = 0; i < 4; ++i) {
    EchoOperation read{"ab", buffer, {}};
    CHECK(bench.client->run(read, {}) == 0);
  }
  REQUIRE(bench.status(bench.first).requests > 0);
  REQUIRE(bench.client->remove_path(bench.first));
  REQUIRE(bench.client->add_path(bench.first));
  CHECK(bench.status(bench.first).requests == 0);
  wait_for_paths(*bench.client);
  CHECK(bench.status(bench.second).requests + bench.status(bench.first).requests < 5);
}

TEST_CASE("a session whose server cannot tell copies apart lets a removed path finish") {
  Bench bench{/*once=*/false};
  std::vector<std::byte> buffer(512);
  EchoOperation held{"H", {}, buffer};
  std::atomic<int> result{-1};
  std::thread caller{[&] { result = bench.client->run(held, {}); }};
  while (bench.server.handler.held == nullptr) std::this_thread::yield();
  REQUIRE(bench.client->add_path(bench.second));
  wait_for_paths(*bench.client);

  SUBCASE("where it is") {
    REQUIRE(bench.client->remove_path(bench.first));
    const PathStatus status = bench.status(bench.first);
    CHECK(status.leaving);
    CHECK_FALSE(status.in_use);
    CHECK(status.state == PathState::connected);
    CHECK(status.in_flight == 1);
    CHECK(error_of(bench.client->remove_path(bench.first)) == ENOENT);
    CHECK(error_of(bench.client->remove_path(bench.second)) == EBUSY);
  }
  SUBCASE("when it is back, if it was lost") {
    REQUIRE(bench.client->disconnect(bench.first));
    REQUIRE(bench.client->remove_path(bench.first));
    CHECK(bench.status(bench.first).leaving);
    CHECK(bench.server.handler.requests == 1);  // it has not been sent again
  }
  SUBCASE("unless it is wanted again") {
    REQUIRE(bench.client->remove_path(bench.first));
    REQUIRE(bench.client->add_path(bench.first));
    CHECK_FALSE(bench.status(bench.first).leaving);
    wait_for_paths(*bench.client);
    REQUIRE(bench.client->remove_path(bench.first));
  }
  EchoOperation read{"ab", buffer, {}};
  CHECK(bench.client->run(read, {}) == 0);  // nobody waits for it
  while (result < 0) {                      // what was lost is sent again, and held again
    if (ServerRequest* request = bench.server.handler.held.exchange(nullptr)) {
      boost::asio::post(reactor_of(*request->session)->io(), [request] { request->finish(0); });
    }
    std::this_thread::yield();
  }
  caller.join();
  CHECK(result == 0);
  bench.wait_until_gone(bench.first);
}

TEST_CASE("a session that is over has no paths to change") {
  Bench bench{true};
  bench.recovery.answer = ESTALE;
  bench.server.server->stop(5s);
  bench.server.server.reset();
  EchoServer other{server_options(true), bench.server.port};
  while (bench.client->alive()) std::this_thread::yield();
  CHECK(error_of(bench.client->add_path(bench.second)) == EIO);
  CHECK(error_of(bench.client->remove_path(bench.first)) == EIO);
}

TEST_CASE("paths are written as people write them") {
  CHECK(to_string({TransportKind::tcp, "", "storage", 1234}) == "tcp:storage:1234");
  CHECK(to_string({TransportKind::rdma, "10.0.0.2", "10.0.0.1", 1}) == "rdma:10.0.0.2@10.0.0.1:1");
  CHECK(to_string({TransportKind::tcp, "fe80::1%eth0", "::1", 80}) ==
        "tcp:[fe80::1%eth0]@[::1]:80");
}

}  // namespace
}  // namespace rtrs::paths_test
