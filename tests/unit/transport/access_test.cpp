// SPDX-License-Identifier: BSD-3-Clause
// A server that changes its mind about paths while clients use them.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "tests/unit/transport/scripted_server.hpp"

namespace rtrs::test::access_test {
namespace {

using namespace std::chrono_literals;
using wire::PathAccess;

constexpr std::uint32_t kFeatures = wire::kFeatureExactlyOnce | wire::kFeatureAccessNotice;

/// A server with two listeners, and a client with a path to each.
struct Pair {
  explicit Pair(std::uint32_t client_features = kFeatures, Duration no_path_timeout = 60s) {
    const auto [kind, host] = test_transport();
    ServerOptions options;
    options.features = kFeatures;
    options.listen = {{kind, host, 0}, {kind, host, 0}};
    server = Server::create(options, handler);
    REQUIRE(server->start());
    ClientOptions wanted = client_options(0);
    wanted.paths.clear();
    for (const ListenerStatus& listener : server->listeners()) {
      const auto port = listener.address.substr(listener.address.rfind(':') + 1);
      wanted.paths.push_back({kind, "", host, static_cast<std::uint16_t>(std::stoi(port))});
    }
    wanted.features = client_features;
    wanted.settle_time = 0s;
    wanted.no_path_timeout = no_path_timeout;
    client = connect(wanted);
    wait_for(0b11);
  }
  ~Pair() {
    client.reset();
    CHECK(server->stop(5s));
  }

  int read() {
    std::vector<std::byte> buffer(64);
    EchoOperation operation{"ab", buffer, {}};
    return client->run(operation, {});
  }
  void wait_for(unsigned in_use) {
    for (unsigned mask = ~0U; mask != in_use; std::this_thread::yield()) {
      mask = 0;
      const auto paths = client->paths();
      for (unsigned i = 0; i < paths.size(); ++i) mask |= (paths[i].in_use ? 1U : 0U) << i;
    }
  }
  /// The server knows that the client knows.
  void wait_until_known() {
    for (bool known = false; !known; std::this_thread::yield()) {
      const auto sessions = server->sessions();
      REQUIRE(sessions.size() == 1);
      known = std::ranges::all_of(sessions[0].paths,
                                  [](const auto& path) { return path.access_known; });
    }
  }
  std::array<std::uint64_t, 2> requests() {
    const auto paths = client->paths();
    return {paths[0].requests, paths[1].requests};
  }

  EchoHandler handler;
  std::unique_ptr<Server> server;
  std::unique_ptr<Client> client;
};

TEST_CASE("access: I/O goes where the server lets it, and comes back") {
  Pair pair;
  for (unsigned round = 0; round < 6; ++round) {
    const unsigned closed = round % 2;
    const auto worse = round < 3 ? PathAccess::inaccessible : PathAccess::non_optimized;
    CHECK(pair.server->set_access(closed, worse));
    pair.wait_for(closed == 0 ? 0b10 : 0b01);
    pair.wait_until_known();
    CHECK(pair.client->paths()[closed].access == worse);
    CHECK(pair.client->paths()[closed].state == PathState::connected);
    const auto before = pair.requests();
    for (int i = 0; i < 100; ++i) CHECK(pair.read() == 0);
    const auto after = pair.requests();
    CHECK(after[closed] == before[closed]);
    CHECK(after[1 - closed] == before[1 - closed] + 100);
    CHECK(pair.server->set_access(closed, PathAccess::optimized));
    pair.wait_for(0b11);
  }
  CHECK_FALSE(pair.server->set_access(2, PathAccess::optimized));
}

TEST_CASE("access: without an accessible path requests wait, and go on when there is one") {
  Pair pair;
  for (unsigned i : {0U, 1U}) pair.server->set_access(i, PathAccess::inaccessible);
  pair.wait_for(0);
  const int served = pair.handler.requests;
  std::thread caller{[&] { CHECK(pair.read() == 0); }};
  std::vector<std::byte> buffer(64);
  EchoOperation question{"ab", buffer, {}};
  CHECK(pair.client->run_control(question, {}) == 0);  // no I/O
  CHECK(pair.handler.requests == served + 1);
  pair.server->set_access(1, PathAccess::non_optimized);
  caller.join();
  CHECK(pair.client->paths()[1].in_use);
}

TEST_CASE("access: who waits for too long is told, and recovers") {
  Pair pair{kFeatures, 1ms};
  for (unsigned i : {0U, 1U}) pair.server->set_access(i, PathAccess::inaccessible);
  pair.wait_for(0);
  CHECK(pair.read() == EIO);
  pair.server->set_access(0, PathAccess::optimized);
  pair.wait_for(0b01);
  CHECK(pair.read() == 0);
}

TEST_CASE("access: a path that comes back is what the server thinks now") {
  Pair pair;
  REQUIRE(pair.client->disconnect(pair.client->paths()[0].address));
  pair.server->set_access(0, PathAccess::inaccessible);
  REQUIRE(pair.client->reconnect(pair.client->paths()[0].address));
  while (pair.client->paths()[0].state != PathState::connected) std::this_thread::yield();
  CHECK(pair.client->paths()[0].access == PathAccess::inaccessible);
  pair.wait_for(0b10);
}

TEST_CASE("access: a client that knows no notices is told nothing, and goes on") {
  Pair pair{wire::kFeatureExactlyOnce};
  pair.server->set_access(0, PathAccess::inaccessible);
  for (int i = 0; i < 100; ++i) CHECK(pair.read() == 0);
  const auto sessions = pair.server->sessions();
  REQUIRE(sessions.size() == 1);
  REQUIRE(sessions[0].paths.size() == 2);
  for (const auto& path : sessions[0].paths) CHECK(path.access_known == (path.listener == 1));
  CHECK(pair.client->paths()[0].access == PathAccess::optimized);
  CHECK(pair.client->paths()[0].in_use);
}

TEST_CASE("status: listeners, sessions, their paths, and the memory of these") {
  Pair pair;
  const auto listeners = pair.server->listeners();
  REQUIRE(listeners.size() == 2);
  CHECK(listeners[0].address == pair.server->addresses()[0]);
  const auto sessions = pair.server->sessions();
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].name.starts_with("test-"));
  CHECK(sessions[0].features == kFeatures);
  REQUIRE(sessions[0].paths.size() == 2);
  for (const auto& path : sessions[0].paths) {
    CHECK(path.connected);
    CHECK(path.connections == 3);
    CHECK(path.requests == 0);
  }
  CHECK(sessions[0].paths[0].listener + sessions[0].paths[1].listener == 1);
  const ServerOptions defaults;
  CHECK(pair.server->memory() == 2 * floor_of_path(defaults.queue_depth, defaults.max_io_size));
}

// ---- Servers that break the rules ---------------------------------------------------------------

/// The path of a client that is sent these immediates dies with `text`, and the client lives.
void loses(std::uint32_t features, const std::vector<std::uint32_t>& immediates,
           const std::string& text) {
  ScriptedServer server{[&](ScriptedServer::Wire wire) {
                          wire.say(wire.control, wire.info_response());
                          std::vector<std::byte> all;
                          for (const std::uint32_t immediate : immediates) {
                            const auto frame =
                                wire.frame(tcp::Opcode::write, tcp::kHasImmediate, immediate);
                            all.insert(all.end(), frame.begin(), frame.end());
                          }
                          wire.say(wire.control, all);
                          wire.answer_heartbeats(wire.control);
                        },
                        features};
  ClientOptions options = server.options();
  options.features = kFeatures;
  auto client = connect(options);
  std::string trouble;
  while (trouble.empty()) {
    trouble = client->paths()[0].trouble;
    std::this_thread::yield();
  }
  CHECK_MESSAGE(trouble.find(text) != std::string::npos, trouble);
  CHECK(client->alive());
}

TEST_CASE("access: notices that break the rules end the path") {
  loses(wire::kFeatureExactlyOnce, {0xB000'0002}, "not agreed on");
  loses(kFeatures, {0xB000'0003}, "unknown value");
  loses(kFeatures, {0xBFFF'FFFF}, "unknown value");
  loses(kFeatures, {0xB000'0002, 0xB000'0000}, "before the last one was answered");
}

TEST_CASE("access: a client that answers notices that were not sent loses its path") {
  ServerOptions options;
  options.features = kFeatures;
  EchoServer server{options};
  RawClient control{server.port};
  auto parameters = test::parameters(0, 1, 5);
  parameters.extension = {.present = true, .features = kFeatures};
  control.hello(parameters);
  REQUIRE(control.answer() == 0);
  control.frame(tcp::Opcode::send, 0, 0, 0, 0, wire::bytes_of(wire::encode_info_request("liar")));
  control.frame(tcp::Opcode::write, tcp::kHasImmediate, 0xB000'0000, 0, 0, {});
  CHECK(control.is_closed_by_server());
}

}  // namespace
}  // namespace rtrs::test::access_test
