// SPDX-License-Identifier: BSD-3-Clause
// Servers that do harm to our client before a session is up: connect() says what was wrong, in
// time.
#include <cerrno>
#include <cstring>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/scripted_server.hpp"

namespace rtrs::hostile::server_handshake_test {
namespace {

using Script = std::function<void(ScriptedServer&)>;

/// connect() must fail with this text in its message; returns the errno.
int refused(const Script& script, const std::string& text) {
  ScriptedServer server{script};
  const auto client = Client::connect(server.options(), {});
  REQUIRE_FALSE(client.has_value());
  CHECK_MESSAGE(client.error().text.find(text) != std::string::npos, client.error().text);
  return client.error().error;
}

TEST_CASE("a server that refuses is told by its errno") {
  for (const int error : {ENOMEM, EINVAL, EEXIST, ECONNRESET, ENXIO, EBUSY}) {
    const auto got = refused(
        [&](ScriptedServer& server) {
          if (auto connection = server.next()) {
            connection->reject(wire::bytes_of(wire::encode_reject(error)));
          }
        },
        std::string{"refused the session: "} + std::strerror(error));
    CHECK(got == error);
  }
}

TEST_CASE("a server that refuses or accepts without a record of RTRS is none") {
  for (const bool accepts : {false, true}) {
    for (const std::size_t size : {0, 8, 56}) {
      const std::vector<std::byte> record(size);
      const auto error = refused(
          [&](ScriptedServer& server) {
            auto connection = server.next();
            if (connection == nullptr) return;
            if (!accepts) return connection->reject(record);
            connection->accept(record);
            connection->is_closed();
          },
          "does not speak RTRS");
      CHECK(error == EPROTO);
    }
  }
}

TEST_CASE("accept records that cannot work are refused") {
  const auto error = [&](auto change, const char* text) {
    auto record = wire::encode(usual_accept());
    change(record);
    return refused(
        [&](ScriptedServer& server) {
          auto connection = server.next();
          if (connection == nullptr) return;
          connection->accept(wire::bytes_of(record));
          connection->is_closed();
        },
        text);
  };
  const char* range = "field out of range";
  CHECK(error([](auto& r) { r.magic = 0; }, "wrong magic") == EPROTO);
  CHECK(error([](auto& r) { r.version = 0x0300; }, "unsupported protocol version") == EPROTO);
  CHECK(error([](auto& r) { r.queue_depth = 0; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.max_io_size = 0; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.max_io_size = 511; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.max_io_size = 0xFFFFFFFF; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.max_header_size = 311; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.max_header_size = 0xFFFFF000; }, range) == EPROTO);
  CHECK(error([](auto& r) { r.queue_depth = 65535; }, range) == EPROTO);  // beyond the immediates
  CHECK(error([](auto& r) { r.error = 17; }, range) == EPROTO);  // an errno that is not negative
  CHECK(error([](auto& r) { r.error = 0x8000; }, range) == EPROTO);
}

TEST_CASE("a server that does not go on with the handshake is given up") {
  SUBCASE("no answer at all") {
    const auto error = refused(
        [](ScriptedServer& server) {
          const auto connection = server.next();
          server.next();
        },
        "timed out while connecting");
    CHECK(error == ETIMEDOUT);
  }
  SUBCASE("no answer to the second connection") {
    const auto error = refused(
        [](ScriptedServer& server) {
          const auto first = server.next();
          if (first) first->accept(wire::bytes_of(wire::encode(usual_accept())));
          const auto second = server.next();
          server.next();
        },
        "timed out while connecting");
    CHECK(error == ETIMEDOUT);
  }
  SUBCASE("no info response") {
    const auto error = refused(
        [](ScriptedServer& server) {
          auto all = server.accept_all(wire::encode(usual_accept()));
          ScriptedServer::until_closed(all);
        },
        "timed out while connecting");
    CHECK(error == ETIMEDOUT);
  }
}

TEST_CASE("a server that hangs up at any step of the handshake") {
  SUBCASE("instead of an answer") {
    CHECK(refused([](ScriptedServer& server) { server.next(); }, "") != 0);
  }
  SUBCASE("after connection 0") {
    const auto error = refused(
        [](ScriptedServer& server) {
          const auto first = server.next();
          if (!first) return;
          first->accept(wire::bytes_of(wire::encode(usual_accept())));
          const auto second = server.next();
          first->disconnect();
          if (second) second->reject(wire::bytes_of(wire::encode_reject(ECONNRESET)));
        },
        "refused the session");
    CHECK(error == ECONNRESET);
  }
  SUBCASE("before the info request, and after it") {
    for (const bool heard : {false, true}) {
      const auto error = refused(
          [&](ScriptedServer& server) {
            auto all = server.accept_all(wire::encode(usual_accept()));
            if (all.empty()) return;
            if (heard) all[0]->next();
            for (auto& connection : all) connection->disconnect();
            ScriptedServer::until_closed(all);
          },
          "the peer closed the connection");
      CHECK(error == EIO);
    }
  }
}

TEST_CASE("info responses that cannot be end the attempt") {
  const auto answers = [](const std::function<std::vector<std::byte>(RawConnection&)>& make,
                          const char* text) {
    const auto error = refused(
        [&](ScriptedServer& server) {
          auto all = server.accept_all(wire::encode(usual_accept()));
          if (all.empty() || !all[0]->next()) return;
          all[0]->post({.opcode = IBV_WR_SEND, .payload = make(*all[0])});
          ScriptedServer::until_closed(all);
        },
        text);
    CHECK(error == EIO);
  };
  const auto patched = [](std::size_t at, std::uint8_t value) {
    return [at, value](RawConnection& connection) {
      auto info = usual_info(connection);
      info[at] = static_cast<std::byte>(value);
      return info;
    };
  };
  const auto sized = [](std::size_t size) {
    return [size](RawConnection& connection) {
      auto info = usual_info(connection);
      info.resize(size);
      return info;
    };
  };
  answers(patched(0, 2), "unexpected message type");
  answers(patched(2, 0), "impossible count");
  answers(patched(3, 1), "");  // 257 descriptors
  answers(patched(20, 1), "inconsistent length");
  answers(patched(22, 0x40), "inconsistent length");  // far more than there are chunks
  answers(patched(22, 0), "inconsistent length");
  answers(sized(0), "too short");
  answers(sized(7), "too short");
  answers(sized(23), "too short");
  answers(sized(8 + 16 * 16 + 1), "longer than");
  answers(sized(4000), "longer than");
}

TEST_CASE("what comes before the info response, or in its place, ends the attempt") {
  const auto says = [](const Shot& shot, const char* text) {
    const auto error = refused(
        [&](ScriptedServer& server) {
          auto all = server.accept_all(wire::encode(usual_accept()));
          if (all.empty() || !all[0]->next()) return;
          all[0]->post(shot);
          ScriptedServer::until_closed(all);
        },
        text);
    CHECK(error == EIO);
  };
  const char* early = "an immediate before the info response";
  says({.immediate = wire::kHeartbeat}, early);
  says({.immediate = encode(wire::ResponseImmediate{0, 0})}, early);
  says({.opcode = IBV_WR_SEND}, "too short");
}

}  // namespace
}  // namespace rtrs::hostile::server_handshake_test
