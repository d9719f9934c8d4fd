// SPDX-License-Identifier: BSD-3-Clause
// Sessions over TLS: real sockets, real threads.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/unit/transport/echo.hpp"
#include "tests/unit/transport/tls_keys.hpp"

namespace rtrs::test::tls_session_test {
namespace {

using namespace std::chrono_literals;

/// The lines that a server has logged so far.
class Said {
 public:
  Log log() {
    return [this](LogLevel, const std::string& line) {
      const std::lock_guard lock{mutex_};
      text_ += line + "\n";
      more_.notify_all();
    };
  }
  /// Also if it comes a little later: a client hears the refusal before the server logs it.
  bool has(const std::string& words) {
    std::unique_lock lock{mutex_};
    const auto end = std::chrono::system_clock::now() + 10s;
    return more_.wait_until(lock, end, [&] { return text_.find(words) != std::string::npos; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable more_;
  std::string text_;
};

ServerOptions server_with(const TlsKeys& keys, TlsMode mode = TlsMode::require) {
  ServerOptions options;
  options.tls = mode;
  options.tls_keys = keys;
  return options;
}

ClientOptions client_with(const EchoServer& server, const TlsKeys& keys) {
  ClientOptions options = client_options(server.port);
  options.tls = TlsMode::require;
  options.tls_keys = keys;
  options.header_digest = options.data_digest = false;
  options.connect_timeout = 3s;
  return options;
}

/// Reads and writes of all sizes are right.
void check_echo(Client& client) {
  for (const std::size_t size : {1U, 100U, 16384U, 16385U, 100'000U, 256U * 1024U}) {
    CAPTURE(size);
    std::vector<std::byte> buffer(size);
    EchoOperation read{"abc", buffer, {}};
    REQUIRE(client.run(read, {}) == 0);
    bool right = true;
    for (std::size_t i = 0; i < size; ++i) right &= buffer[i] == static_cast<std::byte>(3 + i);
    CHECK(right);
    EchoOperation write{"w", {}, buffer};
    REQUIRE(client.run(write, {}) == 0);
  }
}

Failure refusal_of(ClientOptions options) {
  auto client = Client::connect(std::move(options), {});
  REQUIRE_FALSE(client.has_value());
  return client.error();
}

TEST_CASE("a session with a shared key carries everything, and both ends know who the other is") {
  const KeyDirectory keys;
  EchoServer server{server_with(keys.psk("host1", hex_key()))};
  auto client = connect(client_with(server, keys.psk("host1", hex_key())));
  check_echo(*client);
  CHECK(client->paths().at(0).security == "tls13/aes128gcm host1");
  const auto sessions = server.server->sessions();
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].identity.name == "host1");
  CHECK(sessions[0].identity.how == Identity::How::psk);
  CHECK(sessions[0].paths.at(0).security == "tls13/aes128gcm host1");
}

TEST_CASE("a session with certificates carries everything, and the client has its common name") {
  const KeyDirectory keys;
  const TlsKeys files = TestAuthority{}.fill(keys, "host7");
  EchoServer server{server_with(files)};
  auto client = connect(client_with(server, files));
  check_echo(*client);
  const auto sessions = server.server->sessions();
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].identity.name == "host7");
  CHECK(sessions[0].identity.how == Identity::How::certificate);
}

TEST_CASE("many threads share encrypted lanes, and each gets its own answer") {
  const KeyDirectory keys;
  EchoServer server{server_with(keys.psk("host1", hex_key()))};
  auto client = connect(client_with(server, keys.psk("host1", hex_key())));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 100; ++i) {
        const std::string message(1 + (t * 31 + i) % 200, 'x');
        std::vector<std::byte> buffer(1 + (t * 97'701 + i * 13'109) % 260'000);
        EchoOperation read{message, buffer, {}};
        wrong += client->run(read, {}) != 0 ||
                 buffer.back() != static_cast<std::byte>(message.size() + buffer.size() - 1);
        EchoOperation write{message, {}, buffer};
        wrong += client->run(write, {}) != 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(client->alive());
}

TEST_CASE("a name that is not known and a key that is wrong get the same answer") {
  const KeyDirectory keys;
  Said said;
  ServerOptions options = server_with(keys.psk("host1", hex_key()));
  options.log = said.log();
  EchoServer server{std::move(options)};
  const KeyDirectory others;
  const Failure wrong = refusal_of(client_with(server, others.psk("host1", hex_key('8'))));
  const Failure unknown = refusal_of(client_with(server, others.psk("host2", hex_key())));
  CHECK(wrong.error == EACCES);
  CHECK(unknown.error == EACCES);
  std::string expected = wrong.text;
  for (std::size_t at = expected.find("host1"); at != std::string::npos;
       at = expected.find("host1")) {
    expected.replace(at, 5, "host2");
  }
  CHECK(unknown.text == expected);
  CHECK(wrong.text.find("does not have the key 'host1', or another secret for it") !=
        std::string::npos);
  CHECK(said.has("does not have a key that this server has"));
  CHECK(server.server->sessions().empty());
}

TEST_CASE("in clear nobody comes in where TLS is required, and is told what to write") {
  const KeyDirectory keys;
  Said said;
  ServerOptions options = server_with(keys.psk("host1", hex_key()));
  options.log = said.log();
  EchoServer server{std::move(options)};
  const Failure refused = refusal_of(client_options(server.port));
  CHECK(refused.error == EPROTONOSUPPORT);
  CHECK(refused.text.find("rnbds+tcp://") != std::string::npos);
  CHECK(said.has("it comes without TLS, which this listener requires"));
}

TEST_CASE("a client that wants TLS sends nothing in clear to a server without it") {
  const KeyDirectory keys;
  Said said;
  ServerOptions options;
  options.log = said.log();
  EchoServer server{std::move(options)};
  ClientOptions wants = client_with(server, keys.psk("host1", hex_key()));
  wants.connect_timeout = 300ms;
  const Failure refused = refusal_of(std::move(wants));
  CHECK(refused.text.find("TLS") != std::string::npos);
  CHECK(said.has("it begins with TLS, which this listener does not have"));
}

TEST_CASE("where TLS is on, clients come in both ways") {
  const KeyDirectory keys;
  EchoServer server{server_with(keys.psk("host1", hex_key()), TlsMode::on)};
  auto plain = connect(client_options(server.port));
  auto encrypted = connect(client_with(server, keys.psk("host1", hex_key())));
  check_echo(*plain);
  check_echo(*encrypted);
  CHECK(plain->paths().at(0).security == "none");
}

TEST_CASE("a key that is replaced counts from the next connection on, without a restart") {
  const KeyDirectory keys;
  EchoServer server{server_with(keys.psk("host1", hex_key()))};
  const KeyDirectory clients;
  auto before = connect(client_with(server, clients.psk("host1", hex_key())));
  keys.write("host1.psk", "host1/2:" + hex_key('9') + "\n");
  CHECK(refusal_of(client_with(server, clients.psk("host1", hex_key()))).error == EACCES);
  clients.write("host1.psk", "host1/2:" + hex_key('9') + "\n");
  auto after = connect(client_with(server, {.psk = clients.file("host1.psk"),
                                            .certificates = "",
                                            .username = "host1",
                                            .verify_peer = true}));
  check_echo(*before);
  check_echo(*after);
}

TEST_CASE("a key file that is damaged leaves the keys of before in force") {
  const KeyDirectory keys;
  Said said;
  ServerOptions options = server_with(keys.psk("host1", hex_key()));
  options.log = said.log();
  EchoServer server{std::move(options)};
  keys.write("host1.psk", "host1:7777");
  const KeyDirectory clients;
  auto client = connect(client_with(server, clients.psk("host1", hex_key())));
  check_echo(*client);
  CHECK(said.has("the keys that were read before stay in force"));
}

TEST_CASE("a path over RDMA cannot join a session with TLS") {
  const KeyDirectory keys;
  EchoServer server{server_with(keys.psk("host1", hex_key()))};
  auto client = connect(client_with(server, keys.psk("host1", hex_key())));
  const auto added = client->add_path({TransportKind::rdma, "", "127.0.0.1", 4});
  REQUIRE_FALSE(added.has_value());
  CHECK(added.error().error == EPROTONOSUPPORT);
}

// ---- Certificates ------------------------------------------------------------------------------

struct BadCertificate {
  const char* title;
  tls::CertificateRequest request;
  const char* why;
};

TEST_CASE("a client's certificate that does not hold is refused, and the log says why") {
  using Request = tls::CertificateRequest;
  const std::time_t now = std::time(nullptr);
  const std::time_t day = TestAuthority::kDay;
  const BadCertificate cases[] = {
      {"expired",
       {.use = Request::For::client,
        .common_name = "host1",
        .hosts = {},
        .begin = now - 9 * day,
        .end = now - day},
       "expired"},
      {"not yet valid",
       {.use = Request::For::client,
        .common_name = "host1",
        .hosts = {},
        .begin = now + day,
        .end = now + 9 * day},
       "not yet"},
      {"a server's",
       {.use = Request::For::server, .common_name = "host1", .hosts = {"host1"}},
       "purpose"},
      {"a name with a star",
       {.use = Request::For::client, .common_name = "*", .hosts = {}},
       "has one of * / @ : in it"},
      {"a name that goes on behind a NUL",
       {.use = Request::For::client, .common_name = std::string{"host1\0x", 7}, .hosts = {}},
       "has blanks or characters that cannot be printed"},
      {"a name that ends in a NUL",
       {.use = Request::For::client, .common_name = std::string{"host1\0", 6}, .hosts = {}},
       "has blanks or characters that cannot be printed"},
  };
  const TestAuthority authority;
  for (const BadCertificate& bad : cases) {
    CAPTURE(bad.title);
    const KeyDirectory keys;
    const TlsKeys files = authority.fill(keys);
    Said said;
    ServerOptions options = server_with(files);
    options.log = said.log();
    EchoServer server{std::move(options)};
    TestAuthority::put(keys, "client", authority.issue(bad.request));
    const Failure refused = refusal_of(client_with(server, files));
    CHECK(refused.error == EACCES);
    CHECK(refused.text.find("alert") != std::string::npos);
    CHECK(said.has(bad.why));
    CHECK(server.server->sessions().empty());
  }
}

TEST_CASE("a client without a certificate, or with one of another authority, does not come in") {
  const KeyDirectory keys;
  const TlsKeys files = TestAuthority{}.fill(keys);
  EchoServer server{server_with(files)};
  const KeyDirectory own;
  SUBCASE("without one") {
    own.write("ca-cert.pem", tls::read_key_file(keys.file("ca-cert.pem"), tls::Kind::open)->text());
  }
  SUBCASE("of another authority") {
    TestAuthority{}.fill(own);
    own.write("ca-cert.pem", tls::read_key_file(keys.file("ca-cert.pem"), tls::Kind::open)->text());
  }
  const Failure refused = refusal_of(client_with(
      server, {.psk = "", .certificates = own.path(), .username = "", .verify_peer = true}));
  CHECK(refused.error == EACCES);
  CHECK(server.server->sessions().empty());
}

TEST_CASE("a client leaves a server whose certificate is another host's or another authority's") {
  const TestAuthority authority;
  const KeyDirectory keys;
  TlsKeys files = authority.fill(keys);
  EchoServer server{server_with(files)};
  const KeyDirectory own;
  TlsKeys other = authority.fill(own);
  SUBCASE("another host's") {
    ClientOptions options = client_with(server, other);
    options.paths[0].host =
        "127.0.0.2";  // listens on no other address, so the name is the server's
    TestAuthority::put(keys, "server",
                       authority.issue({.use = tls::CertificateRequest::For::server,
                                        .common_name = "storage",
                                        .hosts = {"other.example"}}));
    options.paths[0].host = "127.0.0.1";
    CHECK(refusal_of(std::move(options)).error == EACCES);
  }
  SUBCASE("another authority's") {
    other = TestAuthority{}.fill(own);
    CHECK(refusal_of(client_with(server, other)).error == EACCES);
  }
  SUBCASE("without looking it goes on") {
    other = authority.fill(own);
    TestAuthority{}.fill(keys);
    keys.write("ca-cert.pem", tls::read_key_file(own.file("ca-cert.pem"), tls::Kind::open)->text());
    other.verify_peer = false;
    auto client = connect(client_with(server, other));
    check_echo(*client);
  }
}

TEST_CASE("nobody comes in with nothing where both kinds of keys are accepted") {
  const KeyDirectory keys;
  TlsKeys files = TestAuthority{}.fill(keys);
  files.psk = keys.psk("host1", hex_key()).psk;
  EchoServer server{server_with(files)};
  const KeyDirectory own;
  own.write("ca-cert.pem", tls::read_key_file(keys.file("ca-cert.pem"), tls::Kind::open)->text());
  const Failure refused = refusal_of(client_with(
      server, {.psk = "", .certificates = own.path(), .username = "", .verify_peer = true}));
  CHECK(refused.error == EACCES);
  auto by_key = connect(client_with(server, own.psk("host1", hex_key())));
  check_echo(*by_key);
  auto by_certificate = connect(client_with(
      server, {.psk = "", .certificates = keys.path(), .username = "", .verify_peer = true}));
  check_echo(*by_certificate);
}

}  // namespace
}  // namespace rtrs::test::tls_session_test
