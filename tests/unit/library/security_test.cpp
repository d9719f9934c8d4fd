// SPDX-License-Identifier: BSD-3-Clause
// TLS and what it proves, through the C interface.
#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <utility>

#include "rdma/library/include/rtrs.h"
#include "tests/unit/library/bench.hpp"
#include "tests/unit/transport/tls_keys.hpp"

namespace rtrs::library::security_test {
namespace {

/// Answers with the name that its client has proven.
struct WhoAreYou {
  explicit WhoAreYou(rtrs_server_options options) {
    options.size = sizeof(options);
    rtrs_server_ops ops{};
    ops.size = sizeof(ops);
    ops.request = [](void*, const rtrs_incoming* incoming) {
      const std::string user = rtrs_session_user(incoming->session);
      rtrs_finish(incoming->request, 0, user.data(), user.size());
    };
    rtrs_error error{};
    server = rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, nullptr, &options, &error);
    REQUIRE_MESSAGE(server != nullptr, error.text);
  }
  ~WhoAreYou() { CHECK(rtrs_server_close(server, 5000) == 0); }

  /// How the server calls a client with these options, or why there is none.
  std::pair<std::string, int> calls(rtrs_client_options options) const {
    options.size = sizeof(options);
    if (options.connect_timeout_ms == 0) options.connect_timeout_ms = 60'000;
    const auto uri = "rtrs+tcp://127.0.0.1:" + std::to_string(rtrs_server_port(server));
    rtrs_error error{};
    rtrs_client* const client = rtrs_connect(uri.c_str(), &options, &error);
    if (client == nullptr) return {error.text, error.code};
    std::string name(100, '?');
    const iovec in{name.data(), name.size()};
    std::size_t length = 0;
    const int failed = rtrs_call(client, "", 0, nullptr, 0, &in, 1, &length, 0);
    rtrs_disconnect(client);
    return {name.substr(0, length), failed};
  }

  rtrs_server* server;
};

TEST_CASE("a server knows the name of a client's key, and nothing goes in clear") {
  const test::KeyDirectory files;
  const std::string keys = files.psk("host1", test::hex_key()).psk;
  const std::string others = files.psk("host2", test::hex_key()).psk;
  rtrs_server_options at_server{};
  at_server.tls = RTRS_TLS_REQUIRE;
  at_server.tls_psk = keys.c_str();
  const WhoAreYou server{at_server};
  rtrs_client_options at_client{};
  at_client.tls = RTRS_TLS_REQUIRE;
  at_client.tls_psk = keys.c_str();
  CHECK(server.calls(at_client) == std::pair{std::string{"host1"}, 0});
  at_client.tls_username = "host1";
  CHECK(server.calls(at_client).first == "host1");
  at_client.tls_username = "host3";
  CHECK(server.calls(at_client).second == ENOKEY);
  at_client.tls_psk = others.c_str();
  at_client.tls_username = nullptr;
  CHECK(server.calls(at_client).second == EACCES);
  CHECK(server.calls({}).second != 0);
}

TEST_CASE("... or that of its certificate") {
  const test::KeyDirectory files;
  const std::string directory = test::TestAuthority{}.fill(files).certificates;
  rtrs_server_options at_server{};
  at_server.tls = RTRS_TLS_ON;
  at_server.tls_certificates = directory.c_str();
  const WhoAreYou server{at_server};
  rtrs_client_options at_client{};
  at_client.tls = RTRS_TLS_REQUIRE;
  at_client.tls_certificates = directory.c_str();
  CHECK(server.calls(at_client) == std::pair{std::string{"host1"}, 0});
  CHECK(server.calls({}) == std::pair{std::string{}, 0});  // nobody, for the server lets it choose
}

TEST_CASE("without TLS both ends prove that they have the same key") {
  const test::KeyDirectory files;
  const std::string keys = files.psk("host1", test::hex_key()).psk;
  const std::string others = files.psk("host2", test::hex_key()).psk;
  rtrs_server_options at_server{};
  at_server.auth_psk = keys.c_str();
  const WhoAreYou server{at_server};
  rtrs_client_options at_client{};
  at_client.auth_psk = keys.c_str();
  CHECK(server.calls(at_client) == std::pair{std::string{"host1"}, 0});
  at_client.auth_username = "host1";
  CHECK(server.calls(at_client).first == "host1");
  at_client.auth_username = "host3";
  CHECK(server.calls(at_client).second == ENOKEY);
  at_client.auth_psk = others.c_str();
  at_client.auth_username = nullptr;
  CHECK(server.calls(at_client).second == EACCES);
  const auto without = server.calls({});
  CHECK(without.second == EACCES);
  CHECK(without.first.find("set auth_psk to a file of keys") != std::string::npos);
  const TestServer trusting{echo};
  rtrs_error error{};
  at_client.size = sizeof(at_client);
  CHECK(rtrs_connect(trusting.uri.c_str(), &at_client, &error) == nullptr);
  CHECK(std::string{error.text}.find("set its auth_psk") != std::string::npos);
}

TEST_CASE("a server has one file of keys, for TLS and for proofs") {
  const test::KeyDirectory files;
  const std::string keys = files.psk("host1", test::hex_key()).psk;
  rtrs_server_options both{};
  both.tls = RTRS_TLS_ON;
  both.tls_psk = both.auth_psk = keys.c_str();
  const WhoAreYou server{both};
  rtrs_client_options proves{}, encrypts{};
  proves.auth_psk = encrypts.tls_psk = keys.c_str();
  encrypts.tls = RTRS_TLS_REQUIRE;
  CHECK(server.calls(proves) == std::pair{std::string{"host1"}, 0});
  CHECK(server.calls(encrypts) == std::pair{std::string{"host1"}, 0});
  CHECK(server.calls({}).second == EACCES);
  encrypts.auth_psk = keys.c_str();
  CHECK(server.calls(encrypts).second == EINVAL);

  rtrs_server_ops ops{};
  ops.size = sizeof(ops);
  ops.request = [](void*, const rtrs_incoming* incoming) {
    rtrs_finish(incoming->request, 0, nullptr, 0);
  };
  both.size = sizeof(both);
  both.auth_psk = "other.psk";
  rtrs_error error{};
  CHECK(rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, nullptr, &both, &error) == nullptr);
  CHECK(error.code == EINVAL);
}

TEST_CASE("messages name the options of the library, not those of programs") {
  const test::KeyDirectory files;
  const std::string key = test::hex_key();
  const std::string keys =
      files.write("two.psk", "host1:" + key + "\nhost2:" + test::hex_key() + "\n");
  const auto says = [](const std::pair<std::string, int>& refused, const char* words) {
    CAPTURE(refused.first);
    CHECK(refused.first.find(words) != std::string::npos);
    CHECK(refused.first.find("--") == std::string::npos);
    CHECK(refused.first.find("rnbds+tcp") == std::string::npos);
  };
  rtrs_server_options options{};
  options.tls = RTRS_TLS_REQUIRE;
  options.tls_psk = keys.c_str();
  const WhoAreYou encrypted{options};
  says(encrypted.calls({}), "set tls to RTRS_TLS_REQUIRE");
  rtrs_client_options chooses{};
  chooses.tls = RTRS_TLS_REQUIRE;
  chooses.tls_psk = keys.c_str();
  says(encrypted.calls(chooses), "name yours in tls_username");

  options = {};
  options.max_sessions = 1;
  const WhoAreYou full{options};
  rtrs_client* const first = rtrs_connect(
      ("rtrs+tcp://127.0.0.1:" + std::to_string(rtrs_server_port(full.server))).c_str(), nullptr,
      nullptr);
  REQUIRE(first != nullptr);
  rtrs_client_options impatient{};
  impatient.connect_timeout_ms = 300;
  says(full.calls(impatient), "raise its memory_limit or max_sessions");
  rtrs_disconnect(first);
}

TEST_CASE("a server that requires TLS does not listen over RDMA, which encrypts nothing") {
  const test::KeyDirectory files;
  const std::string keys = files.psk("host1", test::hex_key()).psk;
  rtrs_server_ops ops{};
  ops.size = sizeof(ops);
  ops.request = [](void*, const rtrs_incoming* incoming) {
    rtrs_finish(incoming->request, 0, nullptr, 0);
  };
  rtrs_server_options options{};
  options.size = sizeof(options);
  options.tls = RTRS_TLS_REQUIRE;
  options.tls_psk = keys.c_str();
  rtrs_error error{};
  CHECK(rtrs_listen("rtrs://127.0.0.1", &ops, nullptr, &options, &error) == nullptr);
  CHECK(error.code == EINVAL);
  CHECK(std::string{error.text}.find("RDMA does not encrypt") != std::string::npos);
}

TEST_CASE("keys and the wish to use them come together") {
  const TestServer server{echo};
  const auto refused = [&](rtrs_client_options options) {
    options.size = sizeof(options);
    rtrs_error error{};
    REQUIRE(rtrs_connect(server.uri.c_str(), &options, &error) == nullptr);
    CHECK(error.code == EINVAL);
    return std::string{error.text};
  };
  rtrs_client_options options{};
  options.tls_psk = "keys.psk";
  CHECK(refused(options).find("set tls to RTRS_TLS_REQUIRE") != std::string::npos);
  options = {};
  options.tls = RTRS_TLS_REQUIRE;
  CHECK(refused(options).find("TLS needs keys") != std::string::npos);
  options.tls_psk = "keys.psk";
  options.tls = RTRS_TLS_ON;
  CHECK(refused(options).find("a client uses TLS, or it does not") != std::string::npos);
  options.tls = static_cast<rtrs_tls>(3);
  CHECK(refused(options).find("RTRS_TLS_OFF") != std::string::npos);
}

TEST_CASE("options that were to ask for a key and cannot are refused") {
  rtrs_server_ops ops{};
  ops.size = sizeof(ops);
  ops.request = [](void*, const rtrs_incoming* incoming) {
    rtrs_finish(incoming->request, 0, nullptr, 0);
  };
  for (const auto file : {&rtrs_server_options::auth_psk, &rtrs_server_options::tls_psk,
                          &rtrs_server_options::tls_certificates}) {
    rtrs_server_options options{};
    options.size = sizeof(options);
    options.*file = "";
    rtrs_error error{};
    CHECK(rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, nullptr, &options, &error) == nullptr);
    CHECK(error.code == EINVAL);
  }
  const WhoAreYou anybody{{}};
  for (const auto text : {&rtrs_client_options::auth_psk, &rtrs_client_options::tls_psk,
                          &rtrs_client_options::tls_certificates}) {
    rtrs_client_options options{};
    options.*text = "";
    CHECK(anybody.calls(options).second == EINVAL);
  }
  for (const auto name :
       {&rtrs_client_options::auth_username, &rtrs_client_options::tls_username}) {
    rtrs_client_options options{};
    options.*name = "host1";  // of no key
    CHECK(anybody.calls(options).second == EINVAL);
  }
}

}  // namespace
}  // namespace rtrs::library::security_test
