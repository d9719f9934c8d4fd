// SPDX-License-Identifier: BSD-3-Clause
// Clients that do not get through the handshake, or should not.
#include <cerrno>
#include <cstring>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/victim.hpp"

namespace rtrs::hostile::handshake_test {
namespace {

constexpr const char* kTooLate = "the handshake was not finished in time";

/// The answer to a connect request with some of its bytes replaced.
template <class T>
int answer_to(std::size_t offset, T value) {
  auto record = wire::encode(parameters(0, 2));
  std::memcpy(reinterpret_cast<std::byte*>(&record) + offset, &value, sizeof(value));
  const Caller caller{wire::bytes_of(record)};
  CHECK(caller.answer.record);
  return caller.answer.error;
}

TEST_CASE("connect requests that cannot be are refused with ECONNRESET") {
  auto& victim = Victim::get();
  victim.forget_log();
  CHECK(answer_to(2, std::uint16_t{0}) == ECONNRESET);
  victim.complains("does not speak RTRS");
  CHECK(answer_to(2, std::uint16_t{0xBD1B}) == ECONNRESET);
  victim.complains("does not speak RTRS");
  CHECK(answer_to(4, std::uint16_t{0x0100}) == ECONNRESET);
  victim.complains("unsupported protocol version");
  CHECK(answer_to(4, std::uint16_t{0x0300}) == ECONNRESET);
  victim.complains("unsupported protocol version");
  CHECK(answer_to(6, std::uint16_t{2}) == ECONNRESET);  // cid 2 of 2
  victim.complains("impossible count");
  CHECK(answer_to(6, std::uint16_t{65535}) == ECONNRESET);
  victim.complains("impossible count");
  CHECK(answer_to(8, std::uint16_t{0}) == ECONNRESET);  // no connections
  victim.complains("impossible count");
  CHECK(answer_to(8, std::uint16_t{5000}) == ECONNRESET);
  victim.complains("impossible count");
  CHECK(answer_to(8, std::uint16_t{4096}) == EINVAL);
  victim.complains("max_connections_per_path");
  CHECK(answer_to(6, std::uint16_t{1}) == ENXIO);  // before connection 0
  victim.complains("not its first connection");
  CHECK(answer_to(44, std::uint8_t{0}) == ENXIO);
  victim.complains("unknown session");
  CHECK(answer_to(12, wire::Uuid{}) == EINVAL);  // path_uuid
  victim.complains("a uuid of zeros");
  CHECK(answer_to(28, wire::Uuid{}) == EINVAL);  // session_uuid
  victim.complains("a uuid of zeros");
}

TEST_CASE("a connect request without private data is refused") {
  auto& victim = Victim::get();
  victim.forget_log();
  const Caller nothing{ConstBytes{}};
  CHECK(nothing.answer.error == ECONNRESET);
  victim.complains("does not speak RTRS");
  const std::array<std::byte, 8> few{};
  const Caller little{few};
  CHECK(little.answer.error == ECONNRESET);
  victim.complains("does not speak RTRS");
}

TEST_CASE("connections that contradict those that are there are refused, and those go on") {
  auto& victim = Victim::get();
  RawSession session;
  victim.forget_log();
  const auto answer = [&](auto change) {
    auto p = session.first;
    p.cid = 1;
    change(p);
    return Caller{p}.answer.error;
  };
  CHECK(answer([](auto&) {}) == ECONNRESET);
  victim.complains("this connection exists already");
  CHECK(answer([](auto& p) { p.cid_count = 3; }) == ECONNRESET);
  victim.complains("the number of connections changed");
  CHECK(answer([](auto& p) { p.extension.present = true; }) == ECONNRESET);
  victim.complains("the session has other features");
  CHECK(answer([](auto& p) {
          p.session_uuid.fill(1);
          p.first_connection = false;
        }) == ENXIO);
  victim.complains("unknown session");
  const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
  CHECK(session.read(wire::bytes_of(io(device, 0, 0, 512)), 512) == 0);
}

TEST_CASE("attempts that a later one of their path has overtaken are refused, and it goes on") {
  auto& victim = Victim::get();
  const auto answer = [](const RawSession& session, std::uint16_t cid, std::uint16_t count) {
    auto p = session.first;
    p.cid = cid;
    p.reconnect_count = count;
    return Caller{p}.answer.error;
  };
  const char* overtaken = "a later one has overtaken";
  // The count of `first` is 1. Without generations connection 0 has another reason to be refused.
  for (const std::uint32_t features :
       {std::uint32_t{0}, std::uint32_t{wire::kFeatureExactlyOnce}}) {
    RawSession session{{.own_peer = true, .features = features}};
    victim.forget_log();
    for (const std::uint16_t older : {0, 65535, 32770}) {
      CHECK(answer(session, 1, older) == ECONNRESET);
      victim.complains(overtaken);
      CHECK(answer(session, 0, older) == ECONNRESET);
      victim.complains(features != 0 ? overtaken : "still closing");
    }
    const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
    CHECK(session.read(wire::bytes_of(io(device, 0, 0, 512)), 512) == 0);
  }
}

TEST_CASE("a path that was started again does not go back to its life before") {
  auto& victim = Victim::get();
  RawSession session{{.own_peer = true, .features = wire::kFeatureExactlyOnce}};
  victim.forget_log();
  RawSession again{{.own_peer = true, .features = wire::kFeatureExactlyOnce, .again = &session}};
  CHECK(session.is_closed());
  victim.is_content("connected the path again");
  auto p = session.first;
  CHECK(Caller{p}.answer.error == ECONNRESET);
  victim.complains("a later one has overtaken");
  p.cid = 1;
  CHECK(Caller{p}.answer.error == ECONNRESET);
  victim.complains("a later one has overtaken");
  const auto device = again.open("disk0", rnbd::wire::AccessMode::read_only);
  CHECK(again.read(wire::bytes_of(io(device, 0, 0, 512)), 512) == 0);
}

TEST_CASE("a connect request alone does not close what is there, and its path is let go") {
  auto& victim = Victim::get();
  RawSession session{{.own_peer = true, .features = wire::kFeatureExactlyOnce}};
  victim.forget_log();
  auto p = session.first;
  p.reconnect_count = 2;
  {
    const Caller again{p};
    CHECK(again.answer.error == 0);
    const auto device = session.open("disk0", rnbd::wire::AccessMode::read_only);
    CHECK(session.read(wire::bytes_of(io(device, 0, 0, 512)), 512) == 0);
  }
  victim.is_content("closed by the client");
}

TEST_CASE("a client that stops at any step of the handshake is let go by the deadline") {
  auto& victim = Victim::get();
  victim.forget_log();
  SUBCASE("four of them at once, each at another one") {
    auto connection = RawConnection::toward(target().host, target().port);
    connection->connect(wire::bytes_of(wire::encode(parameters(0, 2))));  // and takes no answer
    const Caller alone{parameters(0, 2)};
    CHECK(alone.answer.error == 0);
    auto p = parameters(0, 3);
    const Caller first{p};
    p.cid = 1;
    const Caller second{p};  // one before the last
    CHECK(second.answer.error == 0);
    RawSession uninformed{{.info = false}};
    for (const Caller* caller : {&alone, &first, &second}) CHECK(caller->connection->is_closed());
    CHECK(uninformed.is_closed());
    victim.complains_of_each(4, kTooLate);
  }
  SUBCASE("each connection is in time, all of them together are not") {
    auto p = parameters(0, 60);
    const Caller first{p};
    std::vector<Caller> others;
    while (p.cid < 59 && !first.connection->is_closed(std::chrono::milliseconds{300})) {
      ++p.cid;
      others.emplace_back(p);
    }
    CHECK(p.cid < 59);
    // The one that came when it was too late is told so as well.
    victim.complains(kTooLate, 2);
  }
}

TEST_CASE("a client that goes after any step of the handshake leaves nothing behind") {
  auto& victim = Victim::get();
  victim.forget_log();
  SUBCASE("after connection 0, orderly") {
    Caller first{parameters(0, 2)};
    first.connection->disconnect();
    victim.is_content("closed by the client");
  }
  SUBCASE("after connection 0, without a word") {
    { const Caller first{parameters(0, 2)}; }
    victim.is_content("closed by the client");
  }
  SUBCASE("after all connections") {
    { const RawSession session{{.info = false}}; }
    victim.is_content("closed by the client");
  }
  SUBCASE("after the info request, without hearing the response") {
    {
      RawSession session{{.info = false}};
      session.send_info(wire::bytes_of(wire::encode_info_request("hasty")));
    }
    victim.is_content("closed by the client");
  }
}

TEST_CASE("a client without a receive for the info response is dropped, because it is silent") {
  auto& victim = Victim::get();
  victim.forget_log();
  RawSession session{{.own_peer = true, .info = false, .receives = 0}};
  session.send_info(wire::bytes_of(wire::encode_info_request("deaf")));
  CHECK(session.is_closed());
  victim.complains("does not answer heartbeats");
}

// ---- Info exchange -----------------------------------------------------------------------------

void bad_info(ConstBytes request, const char* complaint, std::size_t on = 0) {
  auto& victim = Victim::get();
  RawSession session{{.info = false}};
  victim.forget_log();
  session.send_info(request, on);
  CHECK(session.is_closed());
  victim.complains(complaint);
}

TEST_CASE("info requests of another length close the path") {
  std::vector<std::byte> request(4096);
  const auto good = wire::encode_info_request("raw");
  std::memcpy(request.data(), &good, sizeof(good));
  const ConstBytes bytes{request};
  bad_info(bytes.first(0), "too short");
  bad_info(bytes.first(2), "too short");
  bad_info(bytes.first(271), "too short");
  bad_info(bytes.first(273), "longer than");
  bad_info(bytes, "longer than");
}

TEST_CASE("info requests of another type or with a name that cannot be close the path") {
  for (const std::uint16_t type : {1, 2, 4, 65535}) {
    auto request = wire::encode_info_request("raw");
    request.type = type;
    bad_info(wire::bytes_of(request), "unexpected message type");
  }
  for (const std::string name : {"", "a/b", "a.b", "new\nline", "\x80\xff"}) {
    wire::InfoRequest request;
    std::copy(name.begin(), name.end(), request.session_name.begin());
    bad_info(wire::bytes_of(request), "malformed name");
  }
  wire::InfoRequest endless;
  endless.session_name.fill('x');
  bad_info(wire::bytes_of(endless), "malformed name");
}

TEST_CASE("an info request while connections are missing closes the path") {
  auto& victim = Victim::get();
  const Caller first{parameters(0, 2)};
  victim.forget_log();
  first.connection->post(
      {.opcode = IBV_WR_SEND, .payload = wire::bytes_of(wire::encode_info_request("early"))});
  CHECK(first.connection->is_closed());
  victim.complains("an info request while connections are missing");
}

TEST_CASE("a session name that is in use closes the newcomer's path only") {
  auto& victim = Victim::get();
  RawSession owner{{.name = "taken"}};
  bad_info(wire::bytes_of(wire::encode_info_request("taken")), "the session name is in use");
  bad_info(wire::bytes_of(wire::encode_info_request("honest")), "the session name is in use");
  const auto device = owner.open("disk0", rnbd::wire::AccessMode::read_only);
  CHECK(owner.read(wire::bytes_of(io(device, 0, 0, 512)), 512) == 0);
  victim.is_content();
}

TEST_CASE("whatever comes before the info request closes the path") {
  auto& victim = Victim::get();
  RawSession session{{.info = false}};
  victim.forget_log();
  SUBCASE("a heartbeat") {
    session.cid(0).post({.immediate = wire::kHeartbeat});
    CHECK(session.is_closed());
    victim.complains("an immediate before the info request");
  }
  SUBCASE("a request") {
    session.cid(0).post({.immediate = 0});
    CHECK(session.is_closed());
    victim.complains("an immediate before the info request");
  }
  SUBCASE("an invalidation instead of it") {
    session.cid(0).post({.opcode = IBV_WR_SEND_WITH_INV, .immediate = 0x1234});
    CHECK(session.is_closed());
    victim.complains("a key or an address that it may not use");
  }
  SUBCASE("an info request on another connection: there is no receive for it") {
    session.send_info(wire::bytes_of(wire::encode_info_request("astray")), 1);
    CHECK(session.is_closed());
    victim.complains(kTooLate);
  }
}

}  // namespace
}  // namespace rtrs::hostile::handshake_test
