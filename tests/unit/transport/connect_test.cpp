// SPDX-License-Identifier: BSD-3-Clause
// A client meets servers that are no good servers, or not there yet.
#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::connect_test {
namespace {

using namespace std::chrono_literals;

/// At which nobody listens now.
std::uint16_t free_port() { return RawServer{""}.port(); }

/// A client that finds nobody, and its error.
struct Absence {
  using Connecting = std::future<tl::expected<std::unique_ptr<Client>, Failure>>;

  /// A client that has found nobody, or has ended.
  Connecting of(ClientOptions options) {
    options.log = [this](LogLevel level, const std::string& line) {
      if (level == LogLevel::warning && line.find("it is tried again") != std::string::npos) ++told;
    };
    Connecting client = std::async(std::launch::async, [options = std::move(options)] {
      return Client::connect(options, {});
    });
    while (told == 0 && client.wait_for(1ms) != std::future_status::ready) {
    }
    return client;
  }
  std::atomic<int> told{0};
};

TEST_CASE("a server that comes later than its client is found, and each absence is told once") {
  Absence absence;
  auto options = client_options(free_port());
  options.connect_timeout = 60s;
  options.reconnect_max = 100ms;
  ServerOptions known;
  known.id = 7;
  int most = 1;
  std::uint16_t port = options.paths[0].port;
  SUBCASE("over the only path") {}
  SUBCASE("over two") {
    auto second = options.paths[0];
    second.port = free_port();
    options.paths.push_back(second);
    SUBCASE("at the address that names it") {}
    SUBCASE("at another one, when it is known which server it is") {
      options.server_id = known.id;
      port = second.port;
      most = 2;  // the other address, which nobody listens at, may have been tried first
    }
  }
  auto connecting = absence.of(options);
  EchoServer server{known, port};
  CHECK(connecting.get().has_value());
  CHECK(absence.told >= 1);
  CHECK(absence.told <= most);
}

TEST_CASE("a server that hangs up, because it is just stopping, is as good as none") {
  Absence absence;
  auto options = client_options(0);
  options.connect_timeout = 60s;
  options.reconnect_max = 100ms;
  Absence::Connecting connecting;
  {
    Listener stops;
    options.paths[0].port = stops.port;
    std::thread stopping{[&stops] { ::close(stops.accept()); }};
    connecting = absence.of(options);
    stopping.join();
    stops.stop();
  }
  EchoServer server{ServerOptions{}, options.paths[0].port};
  CHECK(connecting.get().has_value());
  CHECK(absence.told == 1);
}

TEST_CASE("a refusal ends a client's waiting for a server") {
  Absence absence;
  auto options = client_options(free_port());
  options.connect_timeout = 60s;
  options.reconnect_max = 100ms;
  ServerOptions refuses;
  refuses.max_connections_per_path = 1;
  SUBCASE("when it is there") {
    auto connecting = absence.of(options);
    EchoServer server{refuses, options.paths[0].port};
    CHECK(connecting.get().error().error == EINVAL);
    CHECK(absence.told == 1);
  }
  SUBCASE("on one of two paths") {
    EchoServer server{refuses};
    options.server_id = 7;  // so that the other path is tried, too
    options.paths.push_back(options.paths[0]);
    options.paths[1].port = server.port;
    CHECK(absence.of(options).get().error().error == EINVAL);
  }
  SUBCASE("with an errno that networks have, too") {
    const auto hello = tcp::make_hello(wire::bytes_of(wire::encode_reject(ECONNREFUSED)), 0);
    const auto bytes = wire::bytes_of(hello);
    RawServer server{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
    options.paths[0].port = server.port();
    const auto failure = absence.of(options).get().error();
    CHECK(failure.error == ECONNREFUSED);
    CHECK(failure.text.find("refused the session") != std::string::npos);
    CHECK(absence.told == 0);
  }
}

TEST_CASE("a client says what is wrong with a server that is none") {
  const auto failure_of = [](ClientOptions options) {
    auto client = Client::connect(std::move(options), {});
    REQUIRE_FALSE(client.has_value());
    return client.error();
  };
  SUBCASE("nobody listens") {
    auto options = client_options(free_port());
    options.connect_timeout = 100ms;
    const auto failure = failure_of(options);
    CHECK(failure.error == ECONNREFUSED);
    CHECK(failure.text.find("is the server running there") != std::string::npos);
  }
  SUBCASE("an NBD server") {
    RawServer server{"NBDMAGICIHAVEOPT\0\3"};
    const auto failure = failure_of(client_options(server.port()));
    CHECK(failure.error == EPROTO);
    CHECK(failure.text.find("NBD server") != std::string::npos);
  }
  SUBCASE("something else") {
    RawServer server{"220 mail.example ESMTP ready\r\n"};
    CHECK(failure_of(client_options(server.port())).error == EPROTO);
  }
  SUBCASE("a server that says nothing") {
    RawServer server{""};
    auto options = client_options(server.port());
    options.connect_timeout = 100ms;
    CHECK(failure_of(options).error == ETIMEDOUT);
  }
  SUBCASE("a host that does not exist") {
    auto options = client_options(1);
    options.paths[0].host = "no-such-host.invalid";
    options.connect_timeout = 1s;  // where no name server is there, it may come
    CHECK(failure_of(options).text.find("no-such-host.invalid") != std::string::npos);
  }
  SUBCASE("an interrupted attempt") {
    RawServer server{""};
    const auto client = Client::connect(client_options(server.port()),
                                        Interrupt{[](void*) { return true; }, nullptr});
    REQUIRE_FALSE(client.has_value());
    CHECK(client.error().error == EINTR);
  }
  SUBCASE("a session name that cannot be") {
    auto options = client_options(1);
    options.session_name = "host.example";
    CHECK(failure_of(options).error == EINVAL);
  }
}

}  // namespace
}  // namespace rtrs::test::connect_test
