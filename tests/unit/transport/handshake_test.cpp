// SPDX-License-Identifier: BSD-3-Clause
// A server meets peers that are no good clients.
#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <mutex>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::handshake_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("peers that speak something else are sent away, and the next client is served") {
  EchoServer server;
  RawClient peer{server.port};
  SUBCASE("HTTP") {
    const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    peer.say(std::as_bytes(std::span{text}));
  }
  SUBCASE("a hello with a wrong checksum") {
    auto hello = tcp::make_hello({}, 0);
    hello.crc = hello.crc ^ 1;
    peer.say(hello);
  }
  SUBCASE("a hello of another version of the binding") {
    tcp::Hello hello;
    hello.version = 99;
    hello.crc = tcp::crc32c(wire::bytes_of(hello).first(72));
    peer.say(hello);
  }
  CHECK(peer.is_closed_by_server());
  check_good_client(server);
}

TEST_CASE("who leaves while it is accepted is no reason to warn") {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;
  ServerOptions options;
  options.reactors = 2;
  options.log = [&](LogLevel level, const std::string& line) {
    const std::lock_guard lock{mutex};
    lines.emplace_back(level, line);
  };
  {
    EchoServer server{options};
    RawClient first{server.port};  // its session is on reactor 0, the next one on reactor 1
    first.hello(parameters(0, 2, 1));
    REQUIRE(first.answer() == 0);
    std::atomic<bool> busy{true};
    boost::asio::post(server.server->reactors().at(1)->io(), [&] { busy.wait(true); });
    RawClient second{server.port};
    second.hello(parameters(0, 2, 2));
    RawClient third{server.port};  // when it has its answer, the hello before it has been read
    third.hello(parameters(0, 2, 3));
    REQUIRE(third.answer() == 0);
    second.vanish();
    busy = false;
    busy.notify_all();
    server.server->stop(5s);
  }
  const auto broke = std::ranges::find_if(lines, [](const auto& line) {
    return line.second.find("broke while it was accepted") != std::string::npos;
  });
  REQUIRE(broke != lines.end());
  CHECK(broke->first == LogLevel::info);
}

TEST_CASE("connect requests are refused with the errno the protocol wants") {
  EchoServer server;
  const auto answer_to = [&](auto change) {
    RawClient peer{server.port};
    auto p = parameters(0, 2, 7);
    change(p);
    peer.hello(p);
    return peer.answer();
  };
  CHECK(answer_to([](auto& p) { p.first_connection = false; }) == ENXIO);
  CHECK(answer_to([](auto& p) { p.cid = p.cid_count; }) == ECONNRESET);
  CHECK(answer_to([](auto& p) { p.cid_count = 1025; }) == EINVAL);
  CHECK(answer_to([](auto& p) { p.cid_count = 5000; }) == ECONNRESET);

  RawClient first{server.port};
  first.hello(parameters(0, 2, 8));
  CHECK(first.answer() == 0);
  const auto second = [&](auto change) {
    RawClient peer{server.port};
    auto p = parameters(1, 2, 8);
    change(p);
    peer.hello(p);
    return peer.answer();
  };
  CHECK(second([](auto& p) { p.cid_count = 3; }) == ECONNRESET);
  CHECK(second([](auto& p) { p.extension.present = true; }) == ENXIO);
  CHECK(second([](auto& p) { p.path_uuid.fill(1); }) == ECONNRESET);
  CHECK(second([](auto&) {}) == 0);
  check_good_client(server);
}

TEST_CASE("a handshake that stalls at any point is ended by its deadline") {
  ServerOptions options;
  options.handshake_timeout = 100ms;
  EchoServer server{options};
  RawClient peer{server.port};
  SUBCASE("nothing is said") {}
  SUBCASE("half a hello") { peer.say(wire::bytes_of(tcp::make_hello({}, 0)).first(30)); }
  SUBCASE("connection 0 only") {
    peer.hello(parameters(0, 2, 3));
    CHECK(peer.answer() == 0);
  }
  SUBCASE("connection 1 only") {  // which makes no session
    peer.hello(parameters(1, 2, 3));
    CHECK(peer.answer() == ENXIO);
  }
  SUBCASE("no info request") {
    peer.hello(parameters(0, 1, 3));
    CHECK(peer.answer() == 0);
  }
  CHECK(peer.is_closed_by_server());
  CHECK(server.handler.sessions == 0);
}

TEST_CASE("more handshakes than allowed push out the oldest, not the newcomer") {
  ServerOptions options;
  options.max_handshakes = 4;
  options.handshake_timeout = 60s;
  EchoServer server{options};
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 12; ++i) idle.push_back(std::make_unique<RawClient>(server.port));
  check_good_client(server);
  CHECK(idle.front()->is_closed_by_server());
}

TEST_CASE("a refusal for lack of memory or sessions can be tried again") {
  ServerOptions options;
  SUBCASE("sessions") { options.max_sessions = 1; }
  SUBCASE("memory") { options.memory_limit = 100 << 20; }
  EchoServer server{options};
  auto first = connect(client_options(server.port));
  const auto second = Client::connect(client_options(server.port), {});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().error == ENOMEM);
  first.reset();
  while (server.handler.sessions != 0) std::this_thread::yield();
  tl::expected<std::unique_ptr<Client>, Failure> third =
      Client::connect(client_options(server.port), {});
  while (!third && third.error().error == ENOMEM) {
    third = Client::connect(client_options(server.port), {});
  }
  CHECK(third.has_value());
}

TEST_CASE("a session name that is in use is refused, and is free when its session ends") {
  EchoServer server;
  auto options = client_options(server.port);
  auto first = connect(options);
  const auto second = Client::connect(options, {});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().text.find(options.session_name) != std::string::npos);
  first.reset();
  while (server.handler.sessions != 0) std::this_thread::yield();
}

TEST_CASE("a hostile session loses its path, and the others do not notice") {
  EchoServer server;
  auto good = connect(client_options(server.port));
  const std::vector<std::byte> zeroes(64);
  const auto header_at_end = [&](RawSession& session, auto header) {
    session.request(0, 100, wire::bytes_of(header), 100);
  };
  SUBCASE("an immediate before the info request") {
    RawClient control{server.port};
    control.hello(parameters(0, 1, 9));
    REQUIRE(control.answer() == 0);
    control.frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kHeartbeat, 0, 0, {});
    CHECK(control.is_closed_by_server());
  }
  SUBCASE("an info request while a connection is missing") {
    RawClient control{server.port};
    control.hello(parameters(0, 2, 9));
    REQUIRE(control.answer() == 0);
    control.frame(tcp::Opcode::send, 0, 0, 0, 0, wire::bytes_of(wire::encode_info_request("raw")));
    CHECK(control.is_closed_by_server());
  }
  SUBCASE("an info request that is too long") {
    RawClient control{server.port};
    control.hello(parameters(0, 1, 9));
    REQUIRE(control.answer() == 0);
    control.frame(tcp::Opcode::send, 0, 0, 0, 0, std::vector<std::byte>(273));
    CHECK(control.is_closed_by_server());
  }
  SUBCASE("a second info request") {
    RawSession session{server};
    session.control.frame(tcp::Opcode::send, 0, 0, 0, 0,
                          wire::bytes_of(wire::encode_info_request("again")));
    CHECK(session.control.is_closed_by_server());
  }
  SUBCASE("a chunk that does not exist") {
    ServerOptions odd;
    odd.queue_depth = 5;
    EchoServer small{odd};
    RawSession session{small};
    session.io.frame(tcp::Opcode::write, tcp::kHasImmediate,
                     encode(wire::RequestImmediate{7, 0}, 5), 0, session.key, zeroes);
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a wrong key") {
    RawSession session{server};
    session.key += 1;
    session.request(0, 0, zeroes, 0);
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a write beyond the chunks") {
    RawSession session{server};
    session.request(256, 0, zeroes, 0);
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a header that would end beyond its chunk") {
    RawSession session{server};
    session.request(0, 266'240 - 2, ConstBytes{zeroes}.first(2), 266'240 - 2);
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a header of unknown type") {
    RawSession session{server};
    header_at_end(session, wire::WriteHeader{.type = 77, .user_length = 32});
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a user message longer than what lies before the header") {
    RawSession session{server};
    header_at_end(session, wire::WriteHeader{.type = 2, .user_length = 101});
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("two descriptors") {
    RawSession session{server};
    header_at_end(session,
                  wire::ReadHeader{.type = 3, .user_length = 4, .flags = 0, .descriptor_count = 2});
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a descriptor longer than the request") {
    RawSession session{server};
    std::vector<std::byte> bytes(24);
    const wire::ReadHeader header{.type = 3, .user_length = 4, .flags = 0, .descriptor_count = 1};
    const wire::Descriptor descriptor{.address = 0, .key = 0, .length = 4096};
    std::memcpy(bytes.data(), &header, 8);
    std::memcpy(bytes.data() + 8, &descriptor, 16);
    session.request(0, 100, bytes, 100);
    CHECK(session.io.is_closed_by_server());
  }
  SUBCASE("a second request in a chunk whose first still executes") {
    RawSession session{server};
    const std::string message = "H";
    std::vector<std::byte> bytes(5);
    bytes[0] = std::byte{'H'};
    const wire::WriteHeader header{.type = 2, .user_length = 1};
    std::memcpy(bytes.data() + 1, &header, 4);
    session.request(0, 0, bytes, 1);
    while (server.handler.held == nullptr) std::this_thread::yield();
    session.request(0, 0, bytes, 1);
    CHECK(session.io.is_closed_by_server());
    boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                      [&] { server.handler.held.load()->finish(0); });
  }
  SUBCASE("more requests than receives were posted for is refused, a flood of heartbeats is not") {
    RawSession session{server};
    for (int i = 0; i < 1000; ++i) {
      session.control.frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kHeartbeat, 0, 0, {});
    }
    tcp::FrameHeader ack;
    for (int i = 0; i < 1000; ++i) {
      REQUIRE(session.control.hear(std::as_writable_bytes(std::span{&ack, 1})));
    }
    CHECK(ack.immediate.value() >= wire::kHeartbeat);
  }
  EchoOperation read{"x", {}, {}};
  CHECK(good->run(read, {}) == 0);
  check_good_client(server);
}

TEST_CASE("a client that falls silent is let go, with all it held") {
  ServerOptions options;
  options.heartbeat_interval = 20ms;
  EchoServer server{options};
  RawSession session{server};
  CHECK(session.control.is_closed_by_server());
  while (server.handler.sessions != 0) std::this_thread::yield();
}

}  // namespace
}  // namespace rtrs::test::handshake_test
