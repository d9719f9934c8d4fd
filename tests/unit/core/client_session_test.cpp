// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <vector>

#include "rdma/core/client/session.hpp"

namespace rtrs::client_session_test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kInterval = 500ms;

/// A session with two paths, whose server has the extension or not.
struct Bench {
  explicit Bench(bool own_peer, Duration no_path_timeout = 30s, bool require_extension = false)
      : features{own_peer ? wire::kFeatureExactlyOnce : 0U},
        session{{.path = {.session_name = "test",
                          .features = features,
                          .heartbeat_interval = kInterval},
                 .paths = {{.names_server = true}, {}},
                 .no_path_timeout = no_path_timeout,
                 .reconnect_min = 1ms,
                 .reconnect_max = 1ms,
                 .settle_time = 0s,
                 .require_extension = require_extension},
                [this] { return ++random; }} {}

  void connect(unsigned path, Instant now, std::uint64_t epoch = 1) {
    session.begin(path);
    accept(path, 16, epoch);
    session.connected(path, now);
  }
  /// The server's answer when connection 0 comes.
  void accept(unsigned path, std::uint16_t depth, std::uint64_t epoch,
              std::uint32_t max_io_size = 4096) {
    wire::AcceptParameters accept;
    accept.queue_depth = depth;
    accept.max_io_size = max_io_size;
    accept.max_header_size = 4096;
    accept.extension = {.present = features != 0, .features = features, .session_epoch = epoch};
    REQUIRE(session.path(path).on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
  }
  /// Tells which server the path leads to; the path is lost again.
  ClientSession::Welcome try_out(unsigned path, Instant now, std::uint16_t depth,
                                 std::uint64_t epoch, std::uint32_t max_io_size = 4096) {
    session.begin(path);
    accept(path, depth, epoch, max_io_size);
    const auto welcome = session.judge(path);
    session.lost(path, now, {EIO, "tried"});
    return welcome;
  }

  std::uint64_t random = 0;
  std::uint32_t features;
  ClientSession session;
};

constexpr Instant kStart{100s};

/// Of path 0, as the server sees it.
wire::Uuid path_uuid(Bench& bench) {
  const auto record = bench.session.path(0).connect_request(0);
  return wire::decode_connect_request(wire::bytes_of(record))->path_uuid;
}

TEST_CASE("changes that wait for a path of Linux's are given up when no-path-timeout has passed") {
  Bench bench{/*own_peer=*/false};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, {EIO, "cut"});
  CHECK_FALSE(bench.session.overdue(kStart + 30s - 1ns));
  SUBCASE("once") {
    CHECK(bench.session.overdue(kStart + 30s) == 0U);
    CHECK_FALSE(bench.session.overdue(kStart + 300s));
  }
  SUBCASE("by command as well") {
    bench.session.disconnect(0, kStart + 1s);
    CHECK(bench.session.in_use(kStart + 1s) == 0b10);
    CHECK(bench.session.next_event() == kStart + 30s);
    CHECK(bench.session.overdue(bench.session.next_event()) == 0U);
  }
  SUBCASE("unless it is back") {
    bench.connect(0, kStart + 20s);
    CHECK_FALSE(bench.session.overdue(kStart + 300s));
  }
  SUBCASE("also when a path has come back that is not theirs") {
    bench.session.lost(1, kStart + 1s, {EIO, "cut"});
    bench.connect(1, kStart + 2s);
    CHECK(bench.session.overdue(kStart + 30s) == 0U);
    CHECK_FALSE(bench.session.overdue(kStart + 300s));
  }
}

TEST_CASE("a server without what require-ext demands is refused, now or when it comes back") {
  for (const bool own_peer : {false, true}) {
    Bench bench{own_peer, 30s, /*require_extension=*/true};
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = accept.max_header_size = 4096;
    accept.extension = {
        .present = own_peer, .features = bench.features, .session_epoch = own_peer ? 1U : 0U};
    REQUIRE(bench.session.begin(0).on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
    const bool unfit = bench.session.judge(0) == ClientSession::Welcome::unfit;
    CHECK(unfit == !own_peer);
  }
}

TEST_CASE("changes wait for ever when they are to") {
  Bench bench{/*own_peer=*/false, 0s};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, {EIO, "cut"});
  CHECK_FALSE(bench.session.overdue(kStart + 10h));
}

TEST_CASE("between own peers no change waits for one certain path") {
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, {EIO, "cut"});
  CHECK_FALSE(bench.session.overdue(kStart + 10h));
}

TEST_CASE("a path that ends as soon as it is connected is connected less and less often") {
  // The longest pause leaves this remainder, shorter ones a small one.
  const auto random = [] { return std::uint64_t{2'000'000'000}; };
  ClientSession session{{.path = {.session_name = "test"},
                         .paths = {{.names_server = true}},
                         .reconnect_min = 100ms,
                         .reconnect_max = 2s},
                        random};
  wire::AcceptParameters accept;
  accept.queue_depth = 16;
  accept.max_io_size = accept.max_header_size = 4096;
  Instant now = kStart;
  const auto lasts = [&](Duration time) {
    ClientPath& core = session.begin(0);
    REQUIRE(core.on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
    session.connected(0, now);
    session.lost(0, now + time, {EIO, "cut"});
    return session.next_event() - now - time;
  };
  CHECK(lasts(1ms) <= 100ms);
  for (int i = 0; i < 5; ++i) lasts(1ms);
  CHECK(lasts(1ms) == 2s);
  CHECK(lasts(2s) <= 100ms);
  CHECK(lasts(1ms) <= 200ms);
}

ClientSessionOptions quick_options() {
  return {.path = {.session_name = "test"},
          .paths = {{.names_server = true}},
          .reconnect_min = 100ms,
          .reconnect_max = 2s};
}

/// The server has been there for a while when its path is lost; returns that moment.
Instant was_there(ClientSession& session) {
  wire::AcceptParameters accept;
  accept.queue_depth = 16;
  accept.max_io_size = accept.max_header_size = 4096;
  REQUIRE(session.begin(0).on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
  session.connected(0, kStart);
  session.lost(0, kStart + 2s, {EIO, "cut"});
  return kStart + 2s;
}

TEST_CASE("a server that was there for a while is asked again at once, and often for ten seconds") {
  std::uint64_t drawn = 0;
  ClientSession session{quick_options(), [&] { return drawn += 7'000'003; }};
  Instant now = was_there(session);
  CHECK(session.next_event() == now);
  unsigned attempts = 0;
  while (now < kStart + 12s) {
    session.begin(0);
    session.lost(0, now, {ECONNREFUSED, "nobody listens"});
    const Duration pause = session.next_event() - now;
    CHECK(pause >= 10ms);
    CHECK(pause <= 50ms);
    now += pause;
    ++attempts;
  }
  CHECK(attempts > 10s / 50ms);
  for (int i = 0; i < 6; ++i) {  // as any other that is not there
    session.begin(0);
    session.lost(0, now, {ECONNREFUSED, "nobody listens"});
  }
  CHECK(session.next_event() - now > 50ms);
}

/// The pauses of a path whose attempts end all alike.
class Attempts {
 public:
  /// `answer`: how far it comes before it ends by `error`.
  Duration fail(int error, const wire::ConnectResponse* answer) {
    ClientPath& core = session_.begin(0);
    if (answer != nullptr) (void)core.on_answer(0, wire::bytes_of(*answer));
    session_.lost(0, now_, {error, "ended"});
    return wait();
  }
  Duration last_for(Duration time, const wire::ConnectResponse& answer) {
    REQUIRE(session_.begin(0).on_answer(0, wire::bytes_of(answer)) == nullptr);
    session_.connected(0, now_);
    now_ += time;
    session_.lost(0, now_, {EIO, "cut"});
    return wait();
  }

 private:
  Duration wait() {
    const Duration pause = session_.next_event() - now_;
    now_ += pause;
    return pause;
  }

  inline static std::mt19937_64 random_{7};  // NOLINT(cert-msc51-cpp): the same each time
  Instant now_ = kStart;
  ClientSession session_{{.path = {.session_name = "test"},
                          .paths = {{.names_server = true}},
                          .reconnect_min = 100ms,
                          .reconnect_max = 2s},
                         [] { return random_(); }};
};

wire::ConnectResponse granted() {
  wire::AcceptParameters accept;
  accept.queue_depth = 16;
  accept.max_io_size = accept.max_header_size = 4096;
  return encode(accept);
}

/// The longest of many first, second ... pauses.
std::vector<Duration> longest_pauses(int error, const wire::ConnectResponse* answer) {
  std::vector<Duration> longest(12);
  for (int trial = 0; trial < 300; ++trial) {
    Attempts attempts;
    for (Duration& one : longest) one = std::max(one, attempts.fail(error, answer));
  }
  return longest;
}

TEST_CASE("a server that refuses is not asked often, although it was there a moment ago") {
  std::uint64_t drawn = 0;
  ClientSession session{quick_options(), [&] { return drawn += 7'000'003; }};
  Instant now = was_there(session);
  const auto refusal = wire::encode_reject(ENOMEM);
  unsigned attempts = 0;
  for (; now < kStart + 12s; now = session.next_event()) {
    REQUIRE(session.begin(0).on_answer(0, wire::bytes_of(refusal)) != nullptr);
    session.lost(0, now, {ENOMEM, "it is full"});
    ++attempts;
  }
  CHECK(attempts < 10s / 200ms);
}

TEST_CASE("a path that is turned away in its handshake again waits longer each time") {
  const auto answer = granted();
  const auto longest = longest_pauses(ECONNRESET, &answer);
  CHECK(longest[0] <= 100ms);  // as ever
  CHECK(longest[1] <= 400ms);
  CHECK(longest[1] > 200ms);
  CHECK(longest[5] > 5s);
  CHECK(longest[11] > 8s);
  CHECK(longest[11] <= 10s);
}

TEST_CASE("only who was let in, and is told no reason, was turned away") {
  const auto answer = granted();
  const auto refusal = wire::encode_reject(ECONNRESET);
  for (const auto& longest :
       {longest_pauses(ECONNREFUSED, nullptr), longest_pauses(ETIMEDOUT, &answer),
        longest_pauses(ECONNRESET, &refusal)}) {
    CHECK(longest[11] > 1s);
    CHECK(longest[11] <= 2s);
  }
}

TEST_CASE("a path that was connected has not been turned away before") {
  const auto answer = granted();
  for (int trial = 0; trial < 100; ++trial) {
    Attempts attempts;
    for (int i = 0; i < 6; ++i) attempts.fail(ECONNRESET, &answer);
    CHECK(attempts.last_for(3s, answer) <= 100ms);
    CHECK(attempts.fail(ECONNRESET, &answer) <= 200ms);
  }
}

TEST_CASE("what went over paths in vain has waited all the time") {
  bool own_peer = false;
  SUBCASE("own peer") { own_peer = true; }
  SUBCASE("Linux") {}
  Bench bench{own_peer};
  ClientSession& session = bench.session;
  const auto connect_and_lose = [&](Duration when, Duration lasts, bool in_vain) {
    bench.connect(0, kStart + when);
    session.lost(0, kStart + when + lasts, {EIO, "cut"}, in_vain);
  };
  connect_and_lose(0s, 100s, false);
  connect_and_lose(120s, 1s, true);
  SUBCASE("a path that came once") {
    CHECK_FALSE(session.give_up_waiting(kStart + 130s - 1ns));
    CHECK(session.next_event() <= kStart + 130s);
    CHECK(session.give_up_waiting(kStart + 130s));
    CHECK_FALSE(session.give_up_waiting(kStart + 131s));
    CHECK(session.overdue(kStart + 130s).has_value() == !own_peer);
    connect_and_lose(140s, 1s, true);
    CHECK(session.give_up_waiting(kStart + 141s));
  }
  SUBCASE("not over one that has answered, or was idle") {
    connect_and_lose(122s, 1s, false);
    CHECK_FALSE(session.give_up_waiting(kStart + 153s - 1ns));
    CHECK_FALSE(session.overdue(kStart + 153s - 1ns));
    CHECK(session.give_up_waiting(kStart + 153s));
  }
  SUBCASE("not over one that lasts") {
    connect_and_lose(122s, 2s, true);
    CHECK_FALSE(session.give_up_waiting(kStart + 154s - 1ns));
    CHECK(session.give_up_waiting(kStart + 154s));
  }
  SUBCASE("not when another one was of use meanwhile") {
    bench.connect(0, kStart + 122s);
    bench.connect(1, kStart + 122s);
    session.lost(0, kStart + 123s, {EIO, "cut"});
    session.lost(1, kStart + 123s, {EIO, "cut"}, /*in_vain=*/true);
    CHECK_FALSE(session.give_up_waiting(kStart + 153s - 1ns));
    CHECK(session.give_up_waiting(kStart + 153s));
  }
}

TEST_CASE("a session knows that it stood still, and that puts its waits off") {
  Bench bench{/*own_peer=*/true};
  ClientSession& session = bench.session;
  CHECK_FALSE(session.own_pause(kStart));
  CHECK_FALSE(session.own_pause(kStart + 1h));
  bench.connect(0, kStart + 1h);
  CHECK_FALSE(session.own_pause(kStart + 1h));
  CHECK_FALSE(session.own_pause(kStart + 1h + 2 * kInterval));
  CHECK(session.own_pause(kStart + 1h + 5 * kInterval) == 3 * kInterval);
  const Instant lost = kStart + 1h + 6 * kInterval;
  CHECK_FALSE(session.own_pause(lost));
  session.lost(0, lost, {EIO, "cut"});
  session.begin(0);
  session.begin(1);
  for (int i = 1; i <= 4; ++i) {  // attempts may take long
    CHECK((session.next_event() == lost + i * kInterval));
    CHECK_FALSE(session.own_pause(lost + i * kInterval));
  }
  CHECK(session.own_pause(lost + 1h) == 1h - 4 * kInterval);
  CHECK_FALSE(session.give_up_waiting(lost + 1h));
  CHECK_FALSE(session.give_up_waiting(lost + 1h - 4 * kInterval + 30s - 1ns));
  CHECK(session.give_up_waiting(lost + 1h - 4 * kInterval + 30s));
}

TEST_CASE("what began after a session stood still is not put off") {
  Bench bench{/*own_peer=*/true};
  ClientSession& session = bench.session;
  bench.connect(0, kStart);
  session.lost(0, kStart + 1h, {EIO, "cut"});  // by somebody who has not asked yet
  CHECK(session.own_pause(kStart + 1h) == 1h);
  CHECK_FALSE(session.give_up_waiting(kStart + 1h + 30s - 1ns));
  CHECK(session.give_up_waiting(kStart + 1h + 30s));
}

TEST_CASE("what a lost path carried is told, too, when requests have given up waiting") {
  Bench bench{/*own_peer=*/true};
  ClientSession& session = bench.session;
  bench.connect(0, kStart);
  session.lost(0, kStart, {EIO, "cut"});
  CHECK(session.give_up_waiting(kStart + 30s));
  CHECK_FALSE(session.give_up_waiting(kStart + 31s));
  session.lost(0, kStart + 32s, {EIO, "not there"});  // nothing went over it
  CHECK_FALSE(session.give_up_waiting(kStart + 33s));
}

TEST_CASE("a path that carries some connections only is not used for a while") {
  Bench bench{/*own_peer=*/true};
  ClientSession& session = bench.session;
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  const auto lose_in_part = [&](unsigned path, Instant now) {
    session.looks_dead(path, now);
    session.distrust(path, now);
    session.lost(path, now, {EIO, "in part"});
    bench.connect(path, now);
  };
  lose_in_part(0, kStart);
  CHECK(session.in_use(kStart + 10s - 1ns) == 0b10);
  CHECK(session.at(0).distrust.active());
  CHECK(session.at(0).trouble.text == "in part");
  CHECK(session.next_event() == kStart + 10s);
  CHECK(session.misses_max(0) == 4);  // nobody waits for it
  SUBCASE("twice as long each time, until that is long ago") {
    CHECK(session.in_use(kStart + 10s) == 0b11);
    CHECK(session.at(0).trouble.kind == Cause::Kind::none);
    lose_in_part(0, kStart + 12s);
    CHECK(session.in_use(kStart + 32s - 1ns) == 0b10);
    CHECK(session.in_use(kStart + 32s) == 0b11);
    lose_in_part(0, kStart + 152s);
    CHECK(session.in_use(kStart + 162s) == 0b11);
    for (int i = 0; i < 10; ++i) lose_in_part(0, kStart + 200s);
    CHECK(session.in_use(kStart + 200s + 10min - 1ns) == 0b10);
    CHECK(session.in_use(kStart + 200s + 10min) == 0b11);
  }
  SUBCASE("or until it is reconnected by command") {
    session.disconnect(0, kStart + 1s);
    session.reconnect(0, kStart + 2s);
    bench.connect(0, kStart + 2s);
    CHECK(session.in_use(kStart + 2s) == 0b11);
    CHECK(session.at(0).trouble.kind == Cause::Kind::none);
  }
  SUBCASE("but it is when no other one is there, until one is") {
    session.lost(1, kStart + 1s, {EIO, "cut"});
    CHECK(session.in_use(kStart + 1s) == 0b01);
    bench.connect(1, kStart + 2s);
    CHECK(session.in_use(kStart + 2s) == 0b10);
  }
  SUBCASE("or when none is better, and they get more time") {
    lose_in_part(1, kStart + 5s);
    CHECK(session.misses_max(1) == 8);
    CHECK(session.in_use(kStart + 5s) == 0b11);
    CHECK(session.in_use(kStart + 10s) == 0b01);
    CHECK(session.in_use(kStart + 15s) == 0b11);
  }
}

TEST_CASE("a path that is added is due at once, and takes requests when it is connected") {
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  CHECK(bench.session.in_use(kStart) == 0b11);
  CHECK_FALSE(bench.session.connect_due(kStart + 1h));
  CHECK(bench.session.add({}, kStart + 1s) == 2U);
  CHECK(bench.session.next_event() == kStart + 1s);
  CHECK(bench.session.connect_due(kStart + 1s) == 2U);
  bench.connect(2, kStart + 1s);
  CHECK(bench.session.in_use(kStart + 1s) == 0b111);
}

TEST_CASE("the number of a removed path is free for another one, which is another to the server") {
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  const wire::Uuid before = path_uuid(bench);
  bench.session.lost(0, kStart, {EIO, "removed"});
  bench.session.remove(0);
  CHECK_FALSE(bench.session.at(0).exists());
  CHECK(bench.session.in_use(kStart) == 0b10);
  CHECK_FALSE(bench.session.connect_due(kStart + 1h));
  CHECK(bench.session.next_event() == Instant::max());
  REQUIRE(bench.session.add({}, kStart) == 0U);
  CHECK(bench.session.at(0).state == PathState::waiting);
  CHECK_FALSE(bench.session.at(0).last_access());
  bench.connect(0, kStart);
  CHECK(bench.session.at(0).last_access() == wire::PathAccess::optimized);
  CHECK(path_uuid(bench) != before);
  for (unsigned i = 2; i < kMaxPaths; ++i) CHECK(bench.session.add({}, kStart) == i);
  CHECK_FALSE(bench.session.add({}, kStart));
}

TEST_CASE("the pause before the next attempt ends by command") {
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, {EIO, "cut"});
  CHECK_FALSE(bench.session.connect_due(kStart));
  bench.session.reconnect(0, kStart);
  CHECK(bench.session.connect_due(kStart) == 0U);
  bench.session.reconnect(1, kStart);  // it stands
  CHECK(bench.session.at(1).state == PathState::connected);
}

TEST_CASE("a path that leaves takes no new requests, but is connected again when it is lost") {
  Bench bench{/*own_peer=*/false};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.leave(0, kStart);
  CHECK(bench.session.in_use(kStart) == 0b10);
  CHECK(bench.session.next_event() == Instant::max());
  SUBCASE("after it was lost") { bench.session.lost(0, kStart, {EIO, "cut"}); }
  SUBCASE("even if it was not to") {
    bench.session.stay(0);
    bench.session.disconnect(0, kStart);
    CHECK_FALSE(bench.session.connect_due(kStart + 1s));
    bench.session.leave(0, kStart);
  }
  CHECK(bench.session.connect_due(kStart + 1s) == 0U);
  bench.connect(0, kStart + 1s);
  CHECK(bench.session.in_use(kStart + 1s) == 0b10);
  bench.session.lost(1, kStart + 2s, {EIO, "cut"});
  CHECK(bench.session.in_use(kStart + 2s) == 0);
  CHECK(bench.session.has_path());
  bench.session.stay(0);
  CHECK(bench.session.in_use(kStart + 2s) == 0b01);
}

TEST_CASE(
    "a session that was left for another one is not taken up again, whatever path leads there") {
  using Welcome = ClientSession::Welcome;
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.session.lost(0, kStart, {EIO, "the server is gone"});
  CHECK(bench.try_out(0, kStart, 16, 1) == Welcome::joined);
  bench.connect(1, kStart, /*epoch=*/2);
  CHECK(bench.try_out(0, kStart, 16, 1) == Welcome::left);
  bench.session.lost(1, kStart, {EIO, "this one, too"});
  CHECK(bench.try_out(0, kStart, 16, 1) == Welcome::left);
  CHECK(bench.try_out(0, kStart, 16, 3) == Welcome::renewed);
  CHECK(bench.try_out(1, kStart, 16, 2) == Welcome::joined);
}

TEST_CASE("a server may come back with larger limits, not with smaller ones") {
  using Welcome = ClientSession::Welcome;
  for (const bool own_peer : {true, false}) {
    Bench bench{own_peer};
    bench.connect(0, kStart);
    bench.session.lost(0, kStart, {EIO, "the server is restarted"});
    CHECK(bench.try_out(0, kStart, 16, 2) == Welcome::renewed);
    CHECK(bench.try_out(0, kStart, 300, 2, 8192) == Welcome::renewed);
    CHECK(bench.try_out(0, kStart, 15, 2) == Welcome::changed);
    CHECK(bench.try_out(0, kStart, 300, 2, 2048) == Welcome::changed);
  }
}

TEST_CASE("a session that is renewed with more goes on with the permits that it had") {
  using Welcome = ClientSession::Welcome;
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  const auto dealt = bench.session.path(0).slots_per_lane();
  bench.session.lost(0, kStart, {EIO, "the server is restarted"});
  bench.session.begin(0);
  bench.accept(0, 300, 2, 8192);
  REQUIRE(bench.session.judge(0) == Welcome::renewed);
  CHECK(bench.session.path(0).slots_per_lane() == dealt);
  CHECK(bench.session.path(0).permits() == 16);
  bench.session.connected(0, kStart);
  CHECK(bench.session.accepted().queue_depth == 16);
  CHECK(bench.session.accepted().max_io_size == 4096);
  // Its other paths are of the session as it is now.
  CHECK(bench.try_out(1, kStart, 300, 2, 8192) == Welcome::joined);
  CHECK(bench.try_out(1, kStart, 16, 2) == Welcome::stranger);
  CHECK(bench.try_out(1, kStart, 300, 3, 8192) == Welcome::stranger);
  // Less than that is still enough when it comes back again.
  bench.session.lost(0, kStart, {EIO, "the server is restarted"});
  CHECK(bench.try_out(0, kStart, 16, 4) == Welcome::renewed);
}

TEST_CASE(
    "a path that was begun before the session was up deals no other permits than the lanes have") {
  using Welcome = ClientSession::Welcome;
  Bench bench{/*own_peer=*/true};
  bench.session.begin(1);
  bench.connect(0, kStart);
  bench.session.lost(0, kStart, {EIO, "the server is restarted"});
  bench.accept(1, 300, 2);
  CHECK(bench.session.judge(1) == Welcome::stranger);
  bench.session.lost(1, kStart, {EIO, "tried"});
  CHECK(bench.try_out(1, kStart, 300, 2) == Welcome::renewed);
}

}  // namespace
}  // namespace rtrs::client_session_test
