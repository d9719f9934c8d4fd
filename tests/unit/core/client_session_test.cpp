#include "rdma/core/client_session.hpp"

#include <doctest/doctest.h>

#include <chrono>

namespace rtrs {
namespace {

using namespace std::chrono_literals;

/// A session with two paths, whose server has the extension or not.
struct Bench {
  explicit Bench(bool own_peer, Duration no_path_timeout = 30s)
      : features{own_peer ? wire::kFeatureExactlyOnce : 0U},
        session{{.path = {.session_name = "test", .features = features},
                 .paths = {{}, {}},
                 .no_path_timeout = no_path_timeout,
                 .reconnect_min = 1ms,
                 .reconnect_max = 1ms,
                 .settle_time = 0s},
                [this] { return ++random; }} {}

  void connect(unsigned path, Instant now) {
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = accept.max_header_size = 4096;
    accept.extension = {.present = features != 0, .features = features, .session_epoch = 1};
    ClientPath& core = session.begin(path);
    REQUIRE(core.on_answer(0, wire::bytes_of(encode(accept))) == nullptr);
    session.connected(path, now);
  }

  std::uint64_t random = 0;
  std::uint32_t features;
  ClientSession session;
};

constexpr Instant kStart{100s};

TEST_CASE("changes that wait for a path of Linux's are given up when no-path-timeout has passed") {
  Bench bench{/*own_peer=*/false};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, "cut");
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
    bench.session.lost(1, kStart + 1s, "cut");
    bench.connect(1, kStart + 2s);
    CHECK(bench.session.overdue(kStart + 30s) == 0U);
    CHECK_FALSE(bench.session.overdue(kStart + 300s));
  }
}

TEST_CASE("changes wait for ever when they are to") {
  Bench bench{/*own_peer=*/false, 0s};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, "cut");
  CHECK_FALSE(bench.session.overdue(kStart + 10h));
}

TEST_CASE("between own peers no change waits for one certain path") {
  Bench bench{/*own_peer=*/true};
  bench.connect(0, kStart);
  bench.connect(1, kStart);
  bench.session.lost(0, kStart, "cut");
  CHECK_FALSE(bench.session.overdue(kStart + 10h));
}

}  // namespace
}  // namespace rtrs
