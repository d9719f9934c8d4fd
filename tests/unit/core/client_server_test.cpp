// SPDX-License-Identifier: BSD-3-Clause
// Which server a client's session is with, when its paths do not all lead to the same one.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "rdma/core/client/session.hpp"

namespace rtrs::client_server_test {
namespace {

using namespace std::chrono_literals;
using Welcome = ClientSession::Welcome;

constexpr Instant kStart{100s};
constexpr std::uint64_t kRight = 0xA;
constexpr std::uint64_t kWrong = 0xB;
constexpr std::uint64_t kSilent = 0;  ///< a server that does not say who it is

/// Path 0 names the server, path 1 is another one to it, as its user believes.
struct Bench {
  explicit Bench(std::uint64_t known = 0, bool only_this_server = false, bool own_peer = true)
      : features{own_peer ? wire::kFeatureExactlyOnce : 0U},
        session{{.path = {.session_name = "test",
                          .features = features | wire::kFeatureSharedIdentity,
                          .heartbeat_interval = 500ms},
                 .paths = {{.names_server = true}, {}},
                 .server_id = known,
                 .only_this_server = only_this_server,
                 .reconnect_min = 1ms,
                 .reconnect_max = 1ms},
                [this] { return ++random; }} {}

  /// The answer of `server` when connection 0 comes. False: that ends the attempt.
  bool answer(unsigned path, std::uint64_t server, std::uint64_t epoch = 1) {
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = accept.max_header_size = 4096;
    accept.extension = {
        .present = true, .features = features, .session_epoch = epoch, .server_id = server};
    return session.path(path).on_answer(0, wire::bytes_of(encode(accept))) == nullptr;
  }
  /// Tells which server the path leads to. It is connected if it may be.
  Welcome connect(unsigned path, std::uint64_t server, std::uint64_t epoch = 1) {
    session.begin(path);
    const bool goes_on = answer(path, server, epoch);
    const Welcome welcome = session.judge(path);
    CHECK(goes_on == (welcome != Welcome::foreign));
    if (welcome == Welcome::foreign || welcome == Welcome::stranger) {
      session.lost(path, kStart, {EIO, "refused"});
    } else {
      session.connected(path, kStart);
    }
    return welcome;
  }
  void lose(unsigned path) { session.lost(path, kStart, {EIO, "cut"}); }
  /// Those that are tried when their time has come.
  std::vector<unsigned> tried() {
    std::vector<unsigned> paths;
    while (const auto path = session.connect_due(kStart + 1h)) {
      paths.push_back(*path);
      session.begin(*path);
    }
    for (const unsigned path : paths) session.lost(path, kStart, {EIO, "nobody is there"});
    return paths;
  }
  bool may_make_session(unsigned path) {
    const auto record = session.begin(path).connect_request(0);
    session.lost(path, kStart, {EIO, "nobody is there"});
    return wire::decode_connect_request(wire::bytes_of(record))->first_connection;
  }

  std::uint64_t random = 0;
  std::uint32_t features;
  ClientSession session;
};

using Paths = std::vector<unsigned>;

TEST_CASE("only the path that names the server is tried until it is known which one it is") {
  Bench bench;
  CHECK(bench.session.connect_due(kStart) == 0U);
  CHECK(bench.tried() == Paths{0});
  CHECK_FALSE(bench.session.may_try(1));
  CHECK(bench.session.next_event() < kStart + 1h);
  CHECK(bench.connect(0, kRight) == Welcome::first);
  CHECK(bench.session.may_try(1));
  CHECK_FALSE(bench.may_make_session(1));
  CHECK(bench.connect(1, kRight) == Welcome::joined);
}

TEST_CASE("whose server is known begins a session over any path that leads there") {
  Bench bench{kRight};
  CHECK(bench.tried() == Paths{0, 1});
  CHECK(bench.may_make_session(1));
  CHECK(bench.connect(1, kWrong) == Welcome::foreign);
  CHECK(bench.session.at(1).foreign);
  CHECK(bench.connect(1, kSilent) == Welcome::foreign);
  CHECK(bench.connect(1, kRight) == Welcome::first);
  CHECK_FALSE(bench.session.at(1).foreign);
  SUBCASE("and joins it over that which names the server") {
    CHECK(bench.connect(0, kRight) == Welcome::joined);
  }
  SUBCASE("but not at another server, although that is named") {
    CHECK(bench.connect(0, kWrong, 2) == Welcome::foreign);
    CHECK(bench.session.server_id() == kRight);
  }
}

TEST_CASE("a path that leads to another server does not renew a session") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  SUBCASE("if it has never led to the right one") {}
  SUBCASE("even if it has led to the right one") {
    REQUIRE(bench.connect(1, kRight) == Welcome::joined);
    bench.lose(1);
  }
  bench.lose(0);
  CHECK(bench.connect(1, kWrong, 2) == Welcome::foreign);
  CHECK(bench.connect(1, kSilent, 2) == Welcome::foreign);
  CHECK(bench.connect(1, kRight, 2) == Welcome::renewed);
}

TEST_CASE("where servers tell no identity, who has been in the session may renew it") {
  for (const bool own_peer : {true, false}) {
    Bench bench{0, false, own_peer};
    REQUIRE(bench.connect(0, kSilent) == Welcome::first);
    const bool joins = bench.connect(1, kSilent) == Welcome::joined;
    CHECK(joins);
    bench.lose(0);
    bench.lose(1);
    CHECK(bench.tried() == Paths{0, 1});
    CHECK(bench.may_make_session(1));
    CHECK(bench.connect(1, kSilent, 2) == Welcome::renewed);
  }
}

TEST_CASE("where servers tell no identity, nobody else may renew a session") {
  Bench bench;
  REQUIRE(bench.connect(0, kSilent) == Welcome::first);
  bench.lose(0);
  CHECK(bench.tried() == Paths{0});
  CHECK(bench.connect(0, kSilent, 2) == Welcome::renewed);
}

TEST_CASE("the path that names the server may find another one there") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  REQUIRE(bench.connect(1, kRight) == Welcome::joined);
  bench.lose(0);
  SUBCASE("but not while the session lives elsewhere") {
    CHECK(bench.connect(0, kWrong, 2) == Welcome::foreign);
  }
  SUBCASE("and takes the others along") {
    bench.lose(1);
    CHECK(bench.connect(0, kWrong, 2) == Welcome::renewed);
    CHECK(bench.connect(1, kRight, 1) == Welcome::foreign);
    CHECK(bench.connect(1, kWrong, 2) == Welcome::joined);
  }
}

TEST_CASE("the path that names the server says which one it is, also when it cannot go on itself") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  REQUIRE(bench.connect(1, kRight) == Welcome::joined);
  bench.lose(0);
  bench.lose(1);
  bench.session.begin(0);
  REQUIRE(bench.answer(0, kWrong, 2));
  CHECK(bench.session.judge(0) == Welcome::renewed);
  bench.lose(0);
  CHECK(bench.connect(1, kRight) == Welcome::foreign);
  CHECK(bench.connect(1, kWrong, 2) == Welcome::renewed);
}

TEST_CASE("who names the identity of the server finds it there, or nothing") {
  Bench bench{kRight, /*only_this_server=*/true};
  for (const unsigned path : {0U, 1U}) {
    CHECK(bench.connect(path, kWrong) == Welcome::foreign);
    CHECK(bench.connect(path, kSilent) == Welcome::foreign);
  }
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  bench.lose(0);
  CHECK(bench.connect(0, kWrong, 2) == Welcome::foreign);
}

TEST_CASE("a server that does not know a session is another one, for those who may only join") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  bench.session.begin(1);
  const auto record = wire::encode_reject(ENXIO);
  REQUIRE(bench.session.path(1).on_answer(0, wire::bytes_of(record)) != nullptr);
  bench.lose(1);
  CHECK(bench.session.at(1).foreign);
}

/// A server and its clone have one identity. The clone knows no session of the other one.
struct CloneBench : Bench {
  using Bench::Bench;
  /// The clone has a session of this client.
  Welcome answer_of_clone(unsigned path) {
    REQUIRE(answer(path, kRight, 2));
    return session.judge(path);
  }
  void refuse(unsigned path) {
    session.begin(path);
    const auto record = wire::encode_reject(ENXIO);
    REQUIRE(session.path(path).on_answer(0, wire::bytes_of(record)) != nullptr);
    lose(path);
  }
  /// A heartbeat interval of the path ends. Returns the paths that are found to lead elsewhere.
  PathMask tick(unsigned path, bool heard = true) {
    now += 500ms;
    const PathMask found = session.heard(path);
    (void)session.path(path).pulse().on_tick(now, heard, /*counts=*/true);
    if (heard) session.path(path).pulse().on_answer();
    return found;
  }
  void connect_and_start(unsigned path, std::uint64_t epoch = 1) {
    connect(path, kRight, epoch);
    session.path(path).pulse().start(now);
  }

  Instant now = kStart;
};

TEST_CASE("a path to a clone, which was refused while the server lived, renews no session") {
  CloneBench bench;
  bench.connect_and_start(0);
  bench.refuse(1);
  CHECK(bench.tick(0) == 0);  // its heartbeat was sent after the refusal
  CHECK(bench.tick(0) == 0b10);
  CHECK(bench.tick(0) == 0);  // it is told once
  bench.lose(0);
  CHECK(bench.tried() == Paths{0});
  CHECK_FALSE(bench.session.may_try(1));
  CHECK(bench.session.at(1).foreign);
  SUBCASE("also when its last attempt ends then") {
    bench.session.begin(1);
    CHECK(bench.answer_of_clone(1) == Welcome::foreign);
    bench.lose(1);
  }
  SUBCASE("until it leads to the session") {
    REQUIRE(bench.connect(0, kRight, 2) == Welcome::renewed);
    REQUIRE(bench.connect(1, kRight, 2) == Welcome::joined);
    bench.lose(0);
    bench.lose(1);
    CHECK(bench.may_make_session(1));
  }
  SUBCASE("until its user trusts it again") {
    bench.session.reconnect(1, kStart);
    CHECK(bench.may_make_session(1));
    CHECK(bench.connect(1, kRight, 2) == Welcome::renewed);
  }
  SUBCASE("until its user removes it and adds it again") {
    bench.session.remove(1);
    REQUIRE(bench.session.add({}, kStart) == 1U);
    CHECK(bench.may_make_session(1));
  }
}

TEST_CASE("a path that is refused because the server was restarted renews the session") {
  CloneBench bench;
  bench.connect_and_start(0);
  SUBCASE("while the other path comes and goes") {
    bench.refuse(1);
    CHECK(bench.tick(0) == 0);
    bench.lose(0);
    bench.connect_and_start(0);
    CHECK(bench.tick(0) == 0);
    CHECK(bench.tick(0) == 0);
  }
  SUBCASE("and nothing comes over the other path any more") {
    bench.refuse(1);
    for (unsigned i = 0; i < 4; ++i) CHECK(bench.tick(0, /*heard=*/false) == 0);
  }
  SUBCASE("and an older answer comes late over the other path") {
    (void)bench.session.path(0).pulse().on_tick(bench.now += 500ms, true, true);
    bench.refuse(1);
    CHECK(bench.tick(0, /*heard=*/false) == 0);
    bench.session.path(0).pulse().on_answer();
    CHECK(bench.tick(0, /*heard=*/false) == 0);
  }
  bench.lose(0);
  CHECK(bench.may_make_session(1));
  CHECK(bench.connect(1, kRight, 2) == Welcome::renewed);
}

TEST_CASE("a path to a server that waits for its turn renews the session when the turn comes") {
  CloneBench bench;
  bench.features |= wire::kFeatureSharedIdentity;
  bench.connect_and_start(0);
  bench.refuse(1);
  for (unsigned i = 0; i < 4; ++i) CHECK(bench.tick(0) == 0);
  bench.lose(0);
  CHECK(bench.may_make_session(1));
  CHECK(bench.connect(1, kRight, 2) == Welcome::renewed);
}

TEST_CASE("a session goes on at its server that takes turns from now on, or no longer") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight, 1) == Welcome::first);
  bench.lose(0);
  bench.features |= wire::kFeatureSharedIdentity;
  CHECK(bench.connect(0, kRight, 2) == Welcome::renewed);
  bench.lose(0);
  bench.features &= ~std::uint32_t{wire::kFeatureSharedIdentity};
  CHECK(bench.connect(0, kRight, 3) == Welcome::renewed);
}

TEST_CASE("a path that has another session at a clone is refused like one that has none") {
  CloneBench bench{kRight};
  bench.session.begin(1);
  bench.connect_and_start(0);
  REQUIRE(bench.answer_of_clone(1) == Welcome::stranger);
  bench.session.lost(1, kStart, Cause{Cause::Kind::other_session, 1});
  bench.tick(0);
  CHECK(bench.tick(0) == 0b10);
}

TEST_CASE("the path that names the server may lead to a clone, too") {
  CloneBench bench;
  bench.connect_and_start(0);
  bench.connect_and_start(1);
  bench.lose(0);
  bench.refuse(0);
  bench.tick(1);
  CHECK(bench.tick(1) == 0b01);
  bench.lose(1);
  CHECK(bench.tried() == Paths{1});
}

TEST_CASE("when the path goes that names the server, another one does that has led there") {
  Bench bench;
  REQUIRE(bench.connect(0, kRight) == Welcome::first);
  REQUIRE(bench.session.add({}, kStart) == 2U);
  REQUIRE(bench.connect(2, kRight) == Welcome::joined);
  bench.lose(0);
  bench.session.remove(0);
  CHECK_FALSE(bench.session.at(1).options.names_server);
  CHECK(bench.session.at(2).options.names_server);
}

}  // namespace
}  // namespace rtrs::client_server_test
