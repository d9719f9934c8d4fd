// SPDX-License-Identifier: BSD-3-Clause
// Sessions that outlive their paths, over real sockets.
#include <array>
#include <boost/asio/post.hpp>
#include <mutex>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "rdma/transport/server/options.hpp"
#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::linger_test {
namespace {

using namespace std::chrono_literals;

ServerOptions lasting(Duration linger) {
  ServerOptions options;
  options.features = wire::kFeatureExactlyOnce;
  options.session_linger = linger;
  return options;
}

/// A path of one connection of an own peer, through the info exchange.
struct RawPath {
  RawPath(const EchoServer& server, std::uint8_t session, std::uint8_t path,
          const std::string& name = "raw", bool first = true)
      : wire{server.port} {
    auto p = parameters(0, 1, session);
    p.path_uuid.fill(path);
    p.first_connection = first;
    p.extension = {.present = true, .features = wire::kFeatureExactlyOnce};
    wire.hello(p);
    error = wire.answer();
    if (error != 0) return;
    wire.frame(tcp::Opcode::send, 0, 0, 0, 0, wire::bytes_of(wire::encode_info_request(name)));
    tcp::FrameHeader header;
    if (!wire.hear(std::as_writable_bytes(std::span{&header, 1}))) {
      error = -1;
      return;
    }
    std::vector<std::byte> response(header.length);
    REQUIRE(wire.hear(response));
    const auto descriptor = wire::copy_of<wire::Descriptor>(ConstBytes{response}.subspan(8));
    key = descriptor.key;
    address = descriptor.address;
  }
  std::uint64_t epoch() const { return wire.extension.session_epoch; }
  /// A write without data in chunk 0.
  void write(std::uint32_t generation, char what) {
    std::array<std::byte, 13> bytes{std::byte(what)};
    const wire::WriteTrailer trailer{.generation = generation};
    const wire::WriteHeader header{.type = 2, .user_length = 9};
    std::memcpy(bytes.data() + 1, &trailer, 8);
    std::memcpy(bytes.data() + 9, &header, 4);
    wire.frame(tcp::Opcode::write, tcp::kHasImmediate, encode(wire::RequestImmediate{0, 9}, 256),
               address, key, bytes);
  }
  int reply() {
    tcp::FrameHeader header;
    REQUIRE(wire.hear(std::as_writable_bytes(std::span{&header, 1})));
    return wire::decode_response(header.immediate).error;
  }
  void say_goodbye() {
    wire.frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kGoodbye, 0, 0, {});
  }

  RawClient wire;
  int error = 0;
  std::uint32_t key = 0;
  std::uint64_t address = 0;
};

template <class Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  return condition();
}

TEST_CASE("a session waits for its client, who finds it again by its epoch and gets old answers") {
  EchoServer server{lasting(60s)};
  std::uint64_t epoch = 0;
  {
    RawPath path{server, 1, 1};
    REQUIRE(path.error == 0);
    epoch = path.epoch();
    CHECK(epoch != 0);
    CHECK(path.wire.extension.volatile_epoch == volatile_epoch_of_this_machine());
    path.write(1, 'w');
    CHECK(path.reply() == 0);
  }
  RawPath again{server, 1, 1, "raw", /*first=*/false};
  REQUIRE(again.error == 0);
  CHECK(again.epoch() == epoch);
  again.write(1, 'w');
  CHECK(again.reply() == 0);
  CHECK(server.handler.requests == 1);
  CHECK(server.handler.sessions == 1);
  RawPath stranger{server, 2, 2, "other"};
  REQUIRE(stranger.error == 0);
  CHECK(stranger.epoch() != epoch);
}

TEST_CASE("a write that hangs is answered on the path that sends it again") {
  EchoServer server{lasting(60s)};
  RawPath path{server, 1, 1};
  RawPath other{server, 1, 2};
  REQUIRE(other.error == 0);
  CHECK(other.epoch() == path.epoch());
  path.write(1, 'H');
  REQUIRE(eventually([&] { return server.handler.held != nullptr; }));
  path.wire.leave();
  other.write(1, 'H');
  boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                    [&] { server.handler.held.load()->finish(ENOSPC); });
  CHECK(other.reply() == ENOSPC);
  CHECK(server.handler.requests == 1);
}

TEST_CASE("a session ends when nobody comes back in time, or with a goodbye") {
  EchoServer server{lasting(50ms)};
  SUBCASE("time") { RawPath path{server, 1, 1}; }
  SUBCASE("goodbye") {
    RawPath path{server, 1, 1};
    RawPath other{server, 1, 2};
    path.say_goodbye();
    CHECK(path.wire.is_closed_by_server());
    CHECK(other.wire.is_closed_by_server());
  }
  CHECK(eventually([&] { return server.handler.sessions == 0; }));
  CHECK(eventually([&] { return RawPath(server, 1, 1, "raw", false).error == ENXIO; }));
}

TEST_CASE("a lingering session yields its name") {
  EchoServer server{lasting(60s)};
  { RawPath path{server, 1, 1, "host"}; }
  CHECK(eventually([&] { return RawPath(server, 2, 2, "host").error == 0; }));
  CHECK(eventually([&] { return RawPath(server, 1, 1, "host", false).error != 0; }));
}

TEST_CASE("a lingering session does not keep the server from stopping") {
  EchoServer server{lasting(60s)};
  { RawPath path{server, 1, 1}; }
  CHECK(server.server->stop(20s));
  CHECK(server.handler.sessions == 0);
}

TEST_CASE("a path that is connected again takes the place of the old one") {
  ServerOptions options = lasting(60s);
  options.max_paths_per_session = 1;
  EchoServer server{options};
  RawPath path{server, 1, 1};
  RawPath again{server, 1, 1};
  CHECK(again.error == 0);
  CHECK(again.epoch() == path.epoch());
  CHECK(path.wire.is_closed_by_server());
  CHECK(RawPath(server, 1, 2).error == ENOMEM);
}

TEST_CASE("a listener tells what it is good for") {
  ServerOptions options;
  options.listen = {{TransportKind::tcp, "127.0.0.1", 0, wire::PathAccess::non_optimized}};
  options.features = wire::kFeatureExactlyOnce;
  EchoHandler handler;
  const auto server = Server::create(options, handler);
  REQUIRE(server->start().has_value());
  const std::string address = server->addresses().at(0);
  RawClient wire{static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))};
  auto p = parameters(0, 1, 1);
  p.extension.present = true;
  wire.hello(p);
  CHECK(wire.answer() == 0);
  CHECK(wire.extension.access == wire::PathAccess::non_optimized);
  wire.leave();
  CHECK(server->stop(5s));
}

TEST_CASE("the volatile epoch is another one after each start of the machine") {
  const auto epoch = volatile_epoch_of("d7a5f1f0-3b5e-4f6c-9a53-6c1f0f3b9d11");
  CHECK(epoch == volatile_epoch_of("d7a5f1f0-3b5e-4f6c-9a53-6c1f0f3b9d11"));
  CHECK(epoch != volatile_epoch_of("d7a5f1f0-3b5e-4f6c-9a53-6c1f0f3b9d12"));
  CHECK(epoch != volatile_epoch_of(""));
}

TEST_CASE("a client that comes and leaves without opening anything is logged once") {
  std::mutex mutex;
  std::vector<std::string> lines;
  ServerOptions options = lasting(20s);
  options.log = [&](LogLevel level, const std::string& line) {
    const std::lock_guard lock{mutex};
    if (level != LogLevel::debug) lines.push_back(line);
  };
  const auto left = [&](EchoServer& server) {
    for (int i = 0; i < 2000; ++i) {
      const auto sessions = server.server->sessions();
      if (sessions.size() == 1 && sessions[0].paths.empty()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  };
  {
    EchoServer server{options};
    for (std::uint8_t visit = 1; visit <= 5; ++visit) {
      {
        RawPath path{server, 7, visit, "raw", visit == 1};
        REQUIRE(path.error == 0);
      }
      REQUIRE(left(server));
    }
    const std::lock_guard lock{mutex};
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].find("connected with 1 connection") != std::string::npos);
    CHECK(lines[1].find("closed by the client") != std::string::npos);
    CHECK(lines[2].find("left with nothing open") != std::string::npos);
  }
}

}  // namespace
}  // namespace rtrs::test::linger_test
