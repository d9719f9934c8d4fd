// SPDX-License-Identifier: BSD-3-Clause
// A client's paths when the server changes their access.
#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "rdma/core/client/session.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"

namespace rtrs::test::client_access_test {
namespace {

using namespace std::chrono_literals;
using wire::PathAccess;

// ---- The client's session -----------------------------------------------------------------------

constexpr Instant kStart{100s};

/// Two paths that settle for 10 s.
struct SessionBench {
  explicit SessionBench(std::uint32_t agreed = wire::kFeatureExactlyOnce |
                                               wire::kFeatureAccessNotice)
      : features{agreed} {
    connect(0);
    connect(1);
    REQUIRE(session.in_use(kStart) == 0b11);
  }
  void connect(unsigned index, Instant now = kStart, PathAccess access = PathAccess::optimized) {
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = accept.max_header_size = 4096;
    accept.extension = {.present = true, .features = features, .session_epoch = 1};
    accept.extension.access = access;
    ClientPath& core = session.begin(index);
    REQUIRE(core.on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
    core.start_exchange(control[index]);
    const std::array chunks{wire::Descriptor{0x10000, 7, 16 * accept.chunk_size()}};
    REQUIRE(core.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr);
    session.connected(index, now);
  }
  bool tell(unsigned index, PathAccess access, Instant now) {
    ClientPath& core = session.path(index);
    REQUIRE(core.on_write_with_immediate(wire::access_immediate(access), 0) == nullptr);
    const bool worse = session.access_changed(index, now);
    core.acknowledge_access();
    return worse;
  }

  std::uint32_t features;
  std::uint64_t random = 0;
  FakeQueuePair control[2];
  ClientSession session{{.path = {.session_name = "test", .features = features},
                         .paths = {{.names_server = true}, {}},
                         .no_path_timeout = 30s,
                         .reconnect_min = 1ms,
                         .reconnect_max = 1ms,
                         .settle_time = 10s},
                        [this] { return ++random; }};
};

TEST_CASE("access: a worse path is left at once, a better one is taken when it has settled") {
  for (const auto worse : {PathAccess::non_optimized, PathAccess::inaccessible}) {
    SessionBench bench;
    CHECK(bench.tell(0, worse, kStart + 20s));
    CHECK(bench.session.in_use(kStart + 20s) == 0b10);
    CHECK_FALSE(bench.tell(0, PathAccess::optimized, kStart + 30s));
    // As good as the one in use: nothing to settle for.
    CHECK(bench.session.in_use(kStart + 30s) == 0b11);
    CHECK(bench.tell(1, PathAccess::non_optimized, kStart + 31s));
    CHECK(bench.tell(0, worse, kStart + 32s));
    CHECK(bench.session.in_use(kStart + 32s) == (worse == PathAccess::inaccessible ? 0b10 : 0b11));
  }
  SessionBench bench;
  bench.tell(0, PathAccess::inaccessible, kStart + 1s);
  bench.tell(1, PathAccess::non_optimized, kStart + 1s);
  CHECK(bench.session.in_use(kStart + 1s) == 0b10);
  bench.tell(0, PathAccess::optimized, kStart + 50s);
  CHECK(bench.session.in_use(kStart + 60s - 1ns) == 0b10);
  CHECK(bench.session.next_event() == kStart + 60s);
  CHECK(bench.session.in_use(kStart + 60s) == 0b01);
}

TEST_CASE("access: requests wait for an accessible path as long as for any, and need not settle") {
  for (const char* what : {"both are inaccessible", "the other one is lost", "it comes back so"}) {
    CAPTURE(what);
    for (const bool in_time : {true, false}) {
      CAPTURE(in_time);
      SessionBench bench;
      bench.tell(0, PathAccess::inaccessible, kStart + 1s);
      CHECK_FALSE(bench.session.give_up_waiting(kStart + 100s));
      if (what[0] == 'b') {
        bench.tell(1, PathAccess::inaccessible, kStart + 100s);
      } else {
        bench.session.lost(1, kStart + 100s, {EIO, "cut"});
        if (what[0] == 't') bench.session.disconnect(1, kStart + 100s);
        if (what[0] == 'i') bench.connect(1, kStart + 110s, PathAccess::inaccessible);
      }
      CHECK(bench.session.has_path());
      CHECK(bench.session.in_use(kStart + 110s) == 0);
      CHECK_FALSE(bench.session.give_up_waiting(kStart + 130s - 1ns));
      CHECK((bench.session.next_event() == kStart + 130s));
      if (in_time) {
        bench.tell(0, PathAccess::non_optimized, kStart + 129s);
        CHECK(bench.session.in_use(kStart + 129s) == 0b01);
        CHECK_FALSE(bench.session.give_up_waiting(kStart + 1000s));
        continue;
      }
      CHECK(bench.session.give_up_waiting(kStart + 130s));
      CHECK_FALSE(bench.session.give_up_waiting(kStart + 1000s));
      CHECK((bench.session.next_event() == Instant::max()));
      if (what[0] == 'b') {  // what it still carries has waited for long enough when it is lost
        bench.session.lost(1, kStart + 1500s, {EIO, "cut"});
        CHECK(bench.session.give_up_waiting(kStart + 1500s));
        CHECK_FALSE(bench.session.give_up_waiting(kStart + 1501s));
      }
      bench.tell(0, PathAccess::optimized, kStart + 2000s);
      CHECK(bench.session.in_use(kStart + 2000s) == 0b01);
    }
  }
}

TEST_CASE("access: a session whose first path is inaccessible waits no longer than any") {
  SessionBench bench;
  bench.session.lost(0, kStart, {EIO, "cut"});
  bench.session.lost(1, kStart, {EIO, "cut"});
  bench.connect(0, kStart + 1s, PathAccess::inaccessible);
  CHECK(bench.session.give_up_waiting(kStart + 30s));
}

TEST_CASE("access: a server that cannot tell when it ends forbids nothing by it") {
  SessionBench bench{wire::kFeatureExactlyOnce};
  bench.session.lost(0, kStart, {EIO, "cut"});
  bench.connect(0, kStart + 1s, PathAccess::inaccessible);
  CHECK(bench.session.in_use(kStart + 20s) == 0b10);
  bench.session.lost(1, kStart + 20s, {EIO, "cut"});
  CHECK(bench.session.in_use(kStart + 20s) == 0b01);
  CHECK_FALSE(bench.session.give_up_waiting(kStart + 1000s));
}

// ---- The client's lane --------------------------------------------------------------------------

/// Two paths, four permits.
struct LaneBench {
  LaneBench() {
    for (unsigned path = 0; path < 2; ++path) {
      for (std::uint32_t i = 0; i < 4; ++i) chunks[path].push_back({0x1000 * (i + 1), path});
    }
  }
  void attach(unsigned path, bool accessible = true) {
    lane.attach(path, {.queue_pair = &pairs[path],
                       .chunks = chunks[path],
                       .queue_depth = 4,
                       .chunk_size = 8192,
                       .max_io_size = 4096,
                       .exactly_once = true,
                       .accessible = accessible});
  }
  Complaint reply(unsigned path, const Request& request) {
    return lane.connection(path).on_write_with_immediate(
        encode(wire::ResponseImmediate{request.slot, 0}), 0);
  }
  std::size_t posts(unsigned path) const { return pairs[path].posts.size(); }

  FakeQueuePair pairs[2];
  std::vector<wire::ChunkAddress> chunks[2];
  Unresolved barrier;
  ClientLane lane{0, 4, &barrier};
};

struct Change : Request {
  Change() {
    message = std::as_bytes(std::span{text});
    done = [](ClientLane&, Request& request) { ++static_cast<Change&>(request).calls; };
  }
  std::string text = "message";
  int calls = 0;
};

TEST_CASE("access: what is in flight ends where it is, what comes goes elsewhere or waits") {
  LaneBench bench;
  bench.attach(0);
  bench.attach(1);
  Change first, second, third;
  bench.lane.use(0b01, PathPolicy::min_inflight);
  bench.lane.submit(first);
  REQUIRE(bench.posts(0) == 1);
  bench.lane.allow(0, false);  // before use() is told
  bench.lane.submit(second);
  CHECK(bench.posts(0) == 1);
  CHECK(bench.posts(1) == 1);
  bench.lane.allow(1, false);
  bench.lane.use(0, PathPolicy::min_inflight);
  bench.lane.submit(third);
  CHECK(bench.reply(0, first) == nullptr);
  CHECK(first.calls == 1);
  CHECK(bench.posts(0) + bench.posts(1) == 2);
  bench.lane.allow(0, true);
  CHECK(bench.posts(0) == 2);
  CHECK(bench.reply(0, third) == nullptr);
  CHECK(bench.reply(1, second) == nullptr);
  CHECK(second.calls == 1);
  CHECK(third.calls == 1);
}

TEST_CASE("access: what was in flight on a path that died is not sent over a forbidden one") {
  LaneBench bench;
  bench.attach(0);
  bench.attach(1, /*accessible=*/false);
  Change change;
  bench.lane.submit(change);
  bench.lane.detach(0);
  CHECK(bench.posts(1) == 0);
  SUBCASE("until it is allowed") {
    bench.lane.allow(1, true);
    CHECK(bench.posts(1) == 1);
    CHECK(bench.reply(1, change) == nullptr);
  }
  SUBCASE("until another is back") {
    bench.attach(0, /*accessible=*/false);
    CHECK(bench.posts(0) == 1);
    bench.lane.detach(0);
    bench.attach(0);
    CHECK(bench.posts(0) == 2);
    CHECK(bench.reply(0, change) == nullptr);
  }
  CHECK(change.calls == 1);
}

TEST_CASE("access: when the waiting ends, what waits fails, and what is in flight does not") {
  LaneBench bench;
  bench.attach(0);
  bench.attach(1);
  Change in_flight, stranded, waiting, late;
  bench.lane.use(0b01, PathPolicy::min_inflight);
  bench.lane.submit(in_flight);
  bench.lane.use(0b10, PathPolicy::min_inflight);
  bench.lane.submit(stranded);
  bench.lane.fail_pending(EIO);  // there are paths
  CHECK(in_flight.calls + stranded.calls == 0);
  bench.lane.allow(0, false);
  bench.lane.detach(1);
  bench.lane.submit(waiting);
  bench.lane.fail_pending(EIO);
  CHECK(in_flight.calls == 0);
  CHECK(stranded.error == EIO);
  CHECK(waiting.error == EIO);
  bench.lane.submit(late);
  CHECK(late.error == EIO);
  CHECK(bench.reply(0, in_flight) == nullptr);
  CHECK(in_flight.error == 0);
  CHECK(bench.barrier.writes());
  // A path that comes back forbidden changes nothing.
  bench.attach(1, /*accessible=*/false);
  bench.lane.submit(late);
  CHECK(late.calls == 2);
  CHECK(bench.posts(1) == 1);
  bench.lane.allow(0, true);
  REQUIRE(bench.posts(0) == 2);  // what became of the failed change is asked for
  bench.lane.submit(late);
  CHECK(bench.reply(0, stranded) == nullptr);
  CHECK_FALSE(bench.barrier.writes());
  bench.lane.resume();
  CHECK(bench.posts(0) == 3);
  CHECK(bench.reply(0, late) == nullptr);
  CHECK(late.error == 0);
}

TEST_CASE("access: what opens and closes goes over a forbidden path if there is no other") {
  LaneBench bench;
  bench.lane.keep_order();
  bench.attach(0, /*accessible=*/false);
  Change first, second, third;
  bench.lane.submit(first);
  CHECK(bench.posts(0) == 1);
  bench.attach(1);
  bench.lane.submit(second);  // must not overtake
  CHECK(bench.posts(0) == 2);
  CHECK(bench.reply(0, first) == nullptr);
  CHECK(bench.reply(0, second) == nullptr);
  bench.lane.submit(third);
  CHECK(bench.posts(1) == 1);
}

}  // namespace
}  // namespace rtrs::test::client_access_test
