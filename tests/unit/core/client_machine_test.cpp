// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "rdma/core/client/machine.hpp"

namespace rtrs::client_machine_test {
namespace {

using namespace std::chrono_literals;
using Act = ClientAction::Kind;
using Event = ClientEvent::Kind;

constexpr Instant kStart{100s};

/// A machine with two paths, and an executor that takes its actions and performs none.
struct Bench {
  explicit Bench(bool own_peer = true, bool recovers = true)
      : features{own_peer ? wire::kFeatureExactlyOnce : 0U},
        machine{
            {.path = {.session_name = "test", .features = features, .heartbeat_interval = 500ms},
             .paths = {{.names_server = true}, {}},
             .reconnect_min = 1ms,
             .reconnect_max = 1ms,
             .settle_time = 0s},
            [this] { return ++random; },
            recovers} {}

  /// The kinds of the actions until there are none.
  std::vector<Act> actions() {
    std::vector<Act> kinds;
    while (const auto action = machine.poll_action()) kinds.push_back(action->kind);
    return kinds;
  }
  /// The path is connected to a session with this epoch, as far as its infos.
  std::vector<Act> ready(unsigned path, std::uint64_t epoch = 1, Instant now = kStart) {
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = 4096;
    accept.max_header_size = 4096;
    accept.extension = {.present = features != 0, .features = features, .session_epoch = epoch};
    auto& core = machine.session().path(path);
    REQUIRE(core.on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
    machine.handle({.kind = Event::ready, .path = path}, now);
    return actions();
  }
  std::vector<Act> lose(unsigned path, Instant now = kStart) {
    machine.handle({.kind = Event::lost,
                    .path = path,
                    .generation = machine.generation(path),
                    .cause = {EIO, "cut"}},
                   now);
    return actions();
  }
  void come_up() {
    machine.handle_timeout(kStart);
    actions();
    ready(0);
    machine.handle_timeout(kStart);
    actions();
    ready(1);
  }
  PathState state(unsigned path) const { return machine.session().at(path).state; }

  std::uint64_t random = 0;
  std::uint32_t features;
  ClientMachine machine;
};

bool has(const std::vector<Act>& actions, Act kind) {
  return std::ranges::count(actions, kind) > 0;
}

/// Both are there, in this order.
bool in_order(const std::vector<Act>& actions, Act first, Act second) {
  const auto at = std::ranges::find(actions, first);
  return at != actions.end() && std::find(at, actions.end(), second) != actions.end();
}

}  // namespace

TEST_CASE("machine: callers come when there are lanes, and these have a path") {
  Bench bench;
  bench.machine.handle_timeout(kStart);
  CHECK(has(bench.actions(), Act::connect));
  const auto actions = bench.ready(0);
  CHECK(actions.front() == Act::make_lanes);
  CHECK(in_order(actions, Act::make_lanes, Act::attach));
  CHECK(in_order(actions, Act::attach, Act::use));
  CHECK(actions.back() == Act::came_up);
}

TEST_CASE("machine: requests of a lost path know the others before they are sent again") {
  Bench bench;
  bench.come_up();
  const auto actions = bench.lose(0);
  CHECK(in_order(actions, Act::close, Act::use));
  CHECK(in_order(actions, Act::use, Act::detach));
  CHECK(in_order(actions, Act::detach, Act::fail_overdue));
  CHECK(bench.machine.in_use() == 0b10);
}

TEST_CASE("machine: a changed access is acknowledged when all lanes go by it, and once") {
  Bench bench;
  bench.come_up();
  bench.machine.handle({.kind = ClientEvent::Kind::access, .path = 0}, kStart);
  bench.machine.handle({.kind = ClientEvent::Kind::access, .path = 0}, kStart);
  const auto actions = bench.actions();
  CHECK(in_order(actions, Act::allow, Act::acknowledge));
  CHECK(std::ranges::count(actions, Act::acknowledge) == 1);
  bench.machine.handle({.kind = ClientEvent::Kind::access, .path = 0}, kStart);
  CHECK(has(bench.actions(), Act::acknowledge));
}

TEST_CASE("machine: the end of an earlier generation of a path is ignored") {
  Bench bench;
  bench.come_up();
  const unsigned generation = bench.machine.generation(0);
  bench.lose(0);
  bench.machine.handle_timeout(kStart + 1s);
  bench.actions();
  CHECK(bench.machine.generation(0) == generation + 1);
  bench.machine.handle({.kind = Event::lost, .path = 0, .generation = generation}, kStart + 1s);
  CHECK(bench.actions().empty());
  CHECK(bench.state(0) == PathState::connecting);
}

TEST_CASE("machine: an action's own consequences come before older actions") {
  Bench bench;
  bench.come_up();
  bench.machine.handle({.kind = Event::remove, .path = 0}, kStart);
  std::vector<Act> order;
  while (const auto action = bench.machine.poll_action()) {
    order.push_back(action->kind);
    if (action->kind != Act::drop) continue;
    bench.machine.handle(
        {.kind = Event::lost, .path = 0, .generation = action->generation, .cause = action->cause},
        kStart);
  }
  CHECK(in_order(order, Act::drop, Act::close));
  CHECK(in_order(order, Act::detach, Act::release));
  CHECK(order.back() == Act::release);
}

TEST_CASE("machine: a removed path goes when no lane is bound to it") {
  Bench bench{/*own_peer=*/false};
  bench.come_up();
  bench.machine.handle({.kind = Event::remove, .path = 0}, kStart);
  CHECK_FALSE(has(bench.actions(), Act::drop));  // Linux's server is let finish
  bench.machine.handle({.kind = Event::released, .path = 0}, kStart);
  CHECK(has(bench.actions(), Act::drop));
  bench.lose(0);
  bench.machine.handle({.kind = Event::released, .path = 0}, kStart);
  CHECK(has(bench.actions(), Act::forget));
  CHECK_FALSE(bench.machine.session().at(0).exists());
}

TEST_CASE("machine: while the session is recovered, other paths wait") {
  Bench bench;
  bench.come_up();
  bench.lose(0);
  bench.lose(1);
  bench.machine.handle_timeout(kStart + 1s);
  bench.actions();
  CHECK(has(bench.ready(0, /*epoch=*/2, kStart + 1s), Act::recover));
  CHECK(bench.ready(1, /*epoch=*/2, kStart + 1s).empty());
  const auto recovered = [&](int error) {
    bench.machine.handle(
        {.kind = Event::recovered, .path = 0, .cause = Cause{Cause::Kind::none, 0, error}},
        kStart + 1s);
    return bench.actions();
  };
  SUBCASE("and join when it is done") {
    const auto actions = recovered(0);
    CHECK(in_order(actions, Act::renew, Act::attach));
    CHECK(std::ranges::count(actions, Act::attach) == 2);
  }
  SUBCASE("and one recovers it when the first has failed") {
    CHECK(has(recovered(EIO), Act::drop));
    CHECK(has(bench.lose(0, kStart + 1s), Act::recover));
  }
  SUBCASE("and one recovers it when the first was lost") {
    CHECK(has(bench.lose(0, kStart + 1s), Act::break_recovery));
    CHECK(has(recovered(EIO), Act::recover));
  }
  SUBCASE("and all end when there is something else") {
    CHECK(has(recovered(ESTALE), Act::end));
    CHECK(bench.machine.next_deadline() == Instant::max());
  }
}

TEST_CASE("machine: a forgotten session ends where nobody can recover it") {
  Bench bench{/*own_peer=*/true, /*recovers=*/false};
  bench.come_up();
  bench.lose(0);
  bench.lose(1);
  bench.machine.handle_timeout(kStart + 1s);
  bench.actions();
  CHECK(has(bench.ready(0, /*epoch=*/2, kStart + 1s), Act::end));
}

TEST_CASE("machine: a path that carries some connections only is distrusted") {
  Bench bench;
  bench.come_up();
  bench.machine.handle({.kind = Event::lost,
                        .path = 0,
                        .generation = bench.machine.generation(0),
                        .cause = Cause{Cause::Kind::unresponsive, 0},
                        .traffic = {.unanswered = true, .silence = 5}},
                       kStart);
  CHECK(bench.machine.session().at(0).distrust.active());
  CHECK_FALSE(bench.machine.session().at(1).distrust.active());
}

TEST_CASE("machine: a silent path is told of once, and distrusted when it falls silent too often") {
  Bench bench;
  bench.come_up();
  const auto race = [&](PathMask silent, Instant now) {
    const Raced raced{.silent = silent, .answers = 0b10, .moved = 3, .since = now - 300ms};
    bench.machine.handle({.kind = Event::raced, .raced = raced}, now);
    std::vector<Notice> notices;
    while (const auto action = bench.machine.poll_action()) {
      if (action->kind == Act::notify) notices.push_back(action->notice);
    }
    return notices;
  };
  for (int i = 0; i < 3; ++i) {
    const Instant now = kStart + i * 3s;
    const auto begins = race(0b01, now);
    REQUIRE_FALSE(begins.empty());
    CHECK(begins[0].kind == Notice::Kind::path_silent);
    CHECK(begins[0].path == 0);
    CHECK(begins[0].paths == 0b10);
    CHECK(begins[0].count == 3);
    CHECK(begins[0].time == 300ms);
    CHECK(race(0b01, now + 100ms).empty());  // another lane has found it, too
    CHECK(bench.machine.session().at(0).distrust.active() == (i == 2));
    CHECK(bench.machine.in_use() == (i == 2 ? 0b10 : 0b11));
    const auto ends = race(0, now + 1s);
    REQUIRE_FALSE(ends.empty());
    CHECK(ends[0].kind == Notice::Kind::path_answers);
    CHECK(ends[0].time == 1300ms);
  }
  CHECK(bench.machine.session().at(0).silences.count() == 3);
}

}  // namespace rtrs::client_machine_test
