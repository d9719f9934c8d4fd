// SPDX-License-Identifier: BSD-3-Clause
// Peers that got through the handshake and then do harm, or come at the worst moment.
#include <boost/asio/post.hpp>
#include <deque>
#include <functional>
#include <thread>

#include "rdma/core/server/session.hpp"
#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/scripted_server.hpp"

namespace rtrs::test::hostile_test {
namespace {

using namespace std::chrono_literals;

/// A state that is not there after 20 s fails the test.
void await(const std::function<bool()>& is_so) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!is_so() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK(is_so());
}

TEST_CASE("a handshake that is pushed out when its hello is just complete leaves nothing behind") {
  std::atomic<bool> armed{false};
  std::atomic<bool> blocked{false};
  std::atomic<bool> released{false};
  ServerOptions options;
  options.reactors = 1;
  options.max_handshakes = 1;
  options.max_sessions = 1;
  options.handshake_timeout = 2s;
  options.log = [&](LogLevel, const std::string&) {
    if (!armed.exchange(false)) return;
    blocked = true;
    while (!released) std::this_thread::yield();
  };
  EchoServer server{options};
  {
    auto client = connect(client_options(server.port));
    RawClient oldest{server.port};
    await([&] { return oldest.is_accepted(); });
    armed = true;
    client.reset();
    await([&] { return blocked.load(); });
    // The event loop stands still; it will find a complete hello and a newcomer at once.
    oldest.hello(parameters(0, 1, 5));
    RawClient newcomer{server.port};
    released = true;
    await([&] { return newcomer.is_accepted(); });
  }
  await([&] { return server.handler.sessions == 0; });
  // The only session is free again, at the latest when the deadline has ended what remained.
  int error = ENOMEM;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (error != 0 && std::chrono::steady_clock::now() < until) {
    const auto client = Client::connect(client_options(server.port), {});
    error = client ? 0 : client.error().error;
    if (error != 0) std::this_thread::sleep_for(1ms);
  }
  CHECK(error == 0);
}

TEST_CASE("a client that sends for ever and never reads is closed before it costs much memory") {
  EchoServer server;
  RawClient control{server.port, 4096};
  control.hello(parameters(0, 1, 9));
  REQUIRE(control.answer() == 0);
  control.frame(tcp::Opcode::send, 0, 0, 0, 0, wire::bytes_of(wire::encode_info_request("flood")));
  std::vector<std::byte> heartbeats;
  tcp::FrameHeader header;
  header.opcode = static_cast<std::uint8_t>(tcp::Opcode::write);
  header.flags = tcp::kHasImmediate;
  header.immediate = wire::kHeartbeat;
  const auto bytes = wire::bytes_of(header);
  for (int i = 0; i < 1000; ++i) heartbeats.insert(heartbeats.end(), bytes.begin(), bytes.end());
  int taken = 0;
  // The kernel's buffers are no cost of the server's: some megabytes of answers.
  while (taken < 600 && control.say(ConstBytes{heartbeats})) ++taken;
  CHECK(taken < 600);
  check_good_client(server);
}

TEST_CASE("a client that dies with answers unread does not hold up a server that stops") {
  ServerOptions patient;
  patient.heartbeat_interval = 1h;
  EchoServer server{patient};
  {
    RawSession session{server};
    std::vector<std::byte> request(4 + 8 + 16);
    const wire::ReadHeader header{.type = 3, .user_length = 4, .flags = 0, .descriptor_count = 1};
    const wire::Descriptor descriptor{.address = 0, .key = 0, .length = 256 * 1024};
    std::memcpy(request.data() + 4, &header, 8);
    std::memcpy(request.data() + 12, &descriptor, 16);
    for (std::uint32_t chunk = 0; chunk < 64; ++chunk) {
      session.request(chunk, 256 * 1024, request, 256 * 1024 + 4);
    }
    while (server.handler.requests < 64) std::this_thread::yield();
    std::thread stopper{[&] { CHECK(server.server->stop(600s)); }};
    const auto refused = [&] {
      auto options = client_options(server.port);
      options.connect_timeout = 100ms;
      return !Client::connect(std::move(options), {}).has_value();
    };
    while (!refused()) std::this_thread::yield();  // it is stopping now
    session.io.leave();
    session.control.leave();
    stopper.join();
  }
  CHECK(server.handler.sessions == 0);
}

TEST_CASE("what two paths without generations bring while the server stands still is one batch") {
  ServerOptions options;
  options.reactors = 1;
  EchoServer server{options};
  RawSession a{server, 9};
  RawSession b{server, 9, 10};
  a.say(3, "Block");
  server.handler.blocked.wait(false);
  // The copy comes first into the sight of the event loop. Judged alone it would be the first
  // write, and the other the copy for which its path is closed.
  b.say(1, "Hold");
  a.say(1, "Hold");
  server.handler.blocked = false;
  server.handler.blocked.notify_all();
  CHECK(a.answered() == 3);
  a.say(2, "more");
  CHECK(a.answered() == 2);
  b.say(4, "more");
  CHECK(b.answered() == 4);
  CHECK(server.handler.requests == 4);
  REQUIRE(server.handler.held != nullptr);
  ServerRequest& held = *server.handler.held.load();
  boost::asio::post(held.session->reactor->io(), [&held] { held.finish(0); });
  CHECK(a.answered() == 1);
  CHECK(b.answered() == 1);
}

TEST_CASE("floods on paths without generations hold up their own session only") {
  ServerOptions options;
  options.reactors = 1;
  options.heartbeat_interval = 1h;  // which nobody answers here
  EchoServer server{options};
  std::atomic<bool> over{false};
  const auto flood = [&over](RawSession& session) {
    tcp::FrameHeader header;
    header.opcode = static_cast<std::uint8_t>(tcp::Opcode::write);
    header.flags = tcp::kHasImmediate;
    header.immediate = wire::kHeartbeat;
    std::vector<std::byte> many;
    const auto one = wire::bytes_of(header);
    for (int i = 0; i < 4096; ++i) many.insert(many.end(), one.begin(), one.end());
    while (!over && session.io.say(ConstBytes{many})) {
    }
  };
  RawSession a{server, 9};
  std::deque<RawSession> others;
  std::vector<std::thread> threads;
  for (std::uint8_t path = 10; path < 13; ++path) {
    threads.emplace_back(flood, std::ref(others.emplace_back(server, std::uint8_t{9}, path)));
  }
  a.say(1, "more");
  for (int i = 0; i < 5; ++i) check_good_client(server);
  over = true;
  CHECK(a.answered() == 1);
  for (auto& thread : threads) thread.join();
}

TEST_CASE("a reply right behind the info response ends the session, not the client's program") {
  ScriptedServer server{[](ScriptedServer::Wire wire) {
    auto bytes = wire.info_response();
    const auto reply =
        wire.frame(tcp::Opcode::write, tcp::kHasImmediate, encode(wire::ResponseImmediate{0, 0}));
    bytes.insert(bytes.end(), reply.begin(), reply.end());
    wire.say(wire.control, bytes);
    Listener::until_closed(wire.control);
  }};
  ClientOptions options = server.options();
  options.no_path_timeout = 100ms;
  const auto client = Client::connect(options, {});
  if (client) {
    EchoOperation read{"x", {}, {}};
    CHECK((*client)->run(read, {}) == EIO);
  }
}

/// Sends heartbeats on the lane as fast as they are read, for ever.
void flood_the_lane(ScriptedServer::Wire wire) {
  wire.say(wire.control, wire.info_response());
  std::vector<std::byte> flood;
  const auto heartbeat = wire.frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kHeartbeat);
  for (int i = 0; i < 4096; ++i) flood.insert(flood.end(), heartbeat.begin(), heartbeat.end());
  while (wire.say(wire.lane, flood)) {
  }
}

TEST_CASE("a server that floods a lane cannot keep a caller from giving up, nor a session alive") {
  ScriptedServer server{flood_the_lane};
  auto client = connect(server.options());
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"x", buffer, {}};
  CHECK(client->run(read, Interrupt{[](void*) { return true; }, nullptr}) == EINTR);
  client.reset();
}

TEST_CASE("a server that floods a lane cannot keep others from it") {
  ScriptedServer server{flood_the_lane};
  auto client = connect(server.options());
  struct Patience {
    std::atomic<int> asked{0};
    std::atomic<bool> enough{false};
    static bool ended(void* context) {
      auto& self = *static_cast<Patience*>(context);
      ++self.asked;
      return self.enough;
    }
  } patience;
  const auto ask = [&] {
    std::vector<std::byte> buffer(4096);
    EchoOperation read{"x", buffer, {}};
    CHECK(client->run(read, {&Patience::ended, &patience}) == EINTR);
  };
  std::thread leader{ask};
  std::thread follower{ask};
  while (patience.asked < 2) std::this_thread::yield();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) CHECK(client->paths()[0].state == PathState::connected);
  CHECK(std::chrono::steady_clock::now() - began < 10s);
  patience.enough = true;
  leader.join();
  follower.join();
}

/// A path of which `script` keeps only some connections alive is given up, with a request under
/// way.
void loses_its_path(const std::function<void(ScriptedServer::Wire)>& script) {
  ScriptedServer server{script, wire::kFeatureExactlyOnce};
  ClientOptions options = server.options();
  options.features = wire::kFeatureExactlyOnce;
  options.heartbeat_interval = 20ms;
  options.no_path_timeout = 10ms;
  auto client = connect(options);
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"x", buffer, {}};
  CHECK(client->run(read, {}) == EIO);
  // The request fails a moment before its path is given up.
  const auto until = std::chrono::steady_clock::now() + 10s;
  bool told = false;
  while (!told && std::chrono::steady_clock::now() < until) {
    const std::string trouble = client->paths()[0].trouble;
    told = trouble.find("owes answers carries nothing") != std::string::npos;
  }
  CHECK(told);
}

TEST_CASE("a connection that owes an answer and carries nothing ends its path, if another lives") {
  loses_its_path([](ScriptedServer::Wire wire) {
    wire.say(wire.control, wire.info_response());
    wire.answer_heartbeats(wire.control);
  });
}

TEST_CASE("a connection 0 that carries nothing ends its path, although another one lives") {
  loses_its_path([](ScriptedServer::Wire wire) {
    wire.say(wire.control, wire.info_response());
    // As an I/O connection under load: something comes all the time.
    const auto life =
        ScriptedServer::Wire::frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kHeartbeatAck);
    while (wire.say(wire.lane, life)) std::this_thread::sleep_for(2ms);
  });
}

TEST_CASE("however long a request takes, its path lives") {
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  ClientOptions options = client_options(server.port);
  options.features = wire::kFeatureExactlyOnce;
  options.heartbeat_interval = 5ms;
  options.heartbeat_misses = 40;
  auto client = connect(options);
  std::thread slow{[&] {
    EchoOperation hangs{"H", {}, {}};
    CHECK(client->run(hangs, {}) == ENOSPC);
  }};
  while (server.handler.held == nullptr) std::this_thread::yield();
  // Three times as long as a dead connection would get.
  const auto until = std::chrono::steady_clock::now() + 3 * 42 * 5ms;
  while (std::chrono::steady_clock::now() < until) {
    REQUIRE(client->paths()[0].state == PathState::connected);
  }
  boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                    [&] { server.handler.held.load()->finish(ENOSPC); });
  slow.join();
  CHECK(client->paths()[0].requests == 1);
}

TEST_CASE("an extension is answered only to those who offered one") {
  ServerOptions options;
  options.features = wire::kFeatureUserMessages;
  EchoServer server{options};
  RawClient linux_peer{server.port};
  linux_peer.hello(parameters(0, 2, 1));
  REQUIRE(linux_peer.answer() == 0);
  CHECK_FALSE(linux_peer.extension.present);
  RawClient own_peer{server.port};
  auto own = parameters(0, 2, 2);
  own.extension.present = true;
  own.extension.features = wire::kFeatureUserMessages;
  own_peer.hello(own);
  REQUIRE(own_peer.answer() == 0);
  CHECK(own_peer.extension.features == wire::kFeatureUserMessages);
  CHECK(own_peer.extension.session_epoch != 0);
}

}  // namespace
}  // namespace rtrs::test::hostile_test
