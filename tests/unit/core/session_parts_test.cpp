// SPDX-License-Identifier: BSD-3-Clause
// The members of a client's session and of a server's path, each without the others.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <vector>

#include "rdma/core/client/distrust.hpp"
#include "rdma/core/client/outage_clock.hpp"
#include "rdma/core/client/path_pulse.hpp"
#include "rdma/core/server/path_chunks.hpp"
#include "rdma/core/server/path_notices.hpp"

namespace rtrs::session_parts_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("requests are given up once for each outage") {
  OutageClock clock{30s};
  clock.set_usable(false, /*was_of_use=*/true, Instant{10s});
  CHECK(clock.deadline() == Instant{40s});
  CHECK_FALSE(clock.give_up(Instant{39s}));
  CHECK(clock.give_up(Instant{40s}));
  CHECK_FALSE(clock.give_up(Instant{41s}));
  CHECK_FALSE(clock.deadline());
  clock.set_usable(true, false, Instant{50s});
  CHECK_FALSE(clock.give_up(Instant{100s}));
  clock.set_usable(false, true, Instant{100s});
  CHECK(clock.give_up(Instant{130s}));
  CHECK(clock.total(Instant{130s}) == 70s);
}

TEST_CASE("a path that came in vain does not end an outage") {
  OutageClock clock{30s};
  clock.set_usable(false, true, Instant{10s});
  clock.set_usable(true, false, Instant{35s});
  clock.on_lost();
  clock.set_usable(false, /*was_of_use=*/false, Instant{36s});
  CHECK(clock.give_up(Instant{40s}));
}

TEST_CASE("a local stall puts the end of an outage off, and not beyond now") {
  OutageClock clock{30s};
  clock.set_usable(false, true, Instant{10s});
  clock.put_off(20s, Instant{35s});
  CHECK(clock.deadline() == Instant{60s});
  clock.put_off(20s, Instant{35s});
  CHECK(clock.deadline() == Instant{65s});
}

TEST_CASE("without a timeout requests wait for ever") {
  OutageClock clock{0s};
  clock.set_usable(false, true, Instant{10s});
  CHECK_FALSE(clock.limited());
  CHECK_FALSE(clock.give_up(Instant{1000h}));
}

TEST_CASE("distrust doubles up to ten minutes, and begins anew long after") {
  Distrust distrust;
  Instant now{1h};
  for (const Duration length : {10s, 20s, 40s, 80s, 160s, 320s, 600s, 600s}) {
    distrust.begin(now);
    CHECK(distrust.until() == now + length);
    CHECK_FALSE(distrust.ends(now + length - 1s));
    now += length;
    CHECK(distrust.ends(now));
    CHECK_FALSE(distrust.ends(now));  // it is over
  }
  now += 10min;
  distrust.begin(now);
  CHECK(distrust.until() == now + 10s);
}

TEST_CASE("an order of the operator ends distrust and its length") {
  Distrust distrust;
  distrust.begin(Instant{1h});
  distrust.begin(Instant{1h});
  distrust.forgive();
  CHECK_FALSE(distrust.active());
  distrust.begin(Instant{1h});
  CHECK(distrust.until() == Instant{1h + 10s});
}

TEST_CASE("silence of connection 0 is counted beside traffic on others") {
  PathPulse pulse{1s, 4};
  pulse.start(Instant{});
  CHECK(pulse.on_tick(Instant{1s}, /*traffic=*/true, /*counts=*/true) == Heartbeat::Verdict::send);
  pulse.on_tick(Instant{2s}, true, true);
  CHECK(pulse.control_silence() == 2);
  CHECK(pulse.silence() == 1);
  pulse.on_arrival();
  pulse.on_tick(Instant{3s}, true, true);
  CHECK(pulse.control_silence() == 0);
  pulse.on_tick(Instant{4s}, true, /*counts=*/false);
  CHECK(pulse.control_silence() == 0);
}

TEST_CASE("latency is that of a heartbeat and of its own answer") {
  PathPulse pulse{1s, 4};
  pulse.start(Instant{});
  CHECK(pulse.on_tick(Instant{1s}, true, true) == Heartbeat::Verdict::send);
  CHECK(pulse.on_tick(Instant{2s}, true, true) == Heartbeat::Verdict::send);
  CHECK_FALSE(pulse.measure(Instant{2s}));
  pulse.on_answer();
  CHECK(pulse.measure(Instant{3s}));
  CHECK(pulse.latency() == 2s);
  CHECK(pulse.on_tick(Instant{4s}, true, true) == Heartbeat::Verdict::send);
  pulse.on_answer();  // to the second one
  CHECK_FALSE(pulse.measure(Instant{4s}));
  pulse.on_answer();
  CHECK(pulse.measure(Instant{5s}));
  CHECK(pulse.latency() == 1s);
}

TEST_CASE("one access notice is under way at a time, and the newest state follows") {
  using wire::PathAccess;
  PathNotices notices{PathAccess::optimized, /*understood=*/true};
  CHECK_FALSE(notices.next_access());
  notices.set_access(PathAccess::inaccessible);
  const auto first = notices.next_access();
  REQUIRE(first);
  notices.set_access(PathAccess::non_optimized);
  CHECK_FALSE(notices.next_access());
  CHECK(notices.on_access_acknowledged(wire::access_immediate(PathAccess::optimized)) != nullptr);
  CHECK(notices.on_access_acknowledged(*first) == nullptr);
  CHECK_FALSE(notices.access_known());
  const auto second = notices.next_access();
  REQUIRE(second);
  CHECK(notices.on_access_acknowledged(*second) == nullptr);
  CHECK(notices.access_known());
  CHECK(notices.on_access_acknowledged(*second) != nullptr);
}

TEST_CASE("only the recall that was told can be acknowledged") {
  PathNotices notices{wire::PathAccess::optimized, true};
  const auto told = notices.send_recall(5);
  CHECK(notices.recall_unanswered());
  CHECK_FALSE(notices.on_recall_acknowledged(wire::recall_immediate(4)));
  CHECK(notices.on_recall_acknowledged(told) == 5);
  CHECK_FALSE(notices.recall_unanswered());
  CHECK_FALSE(notices.on_recall_acknowledged(told));
}

TEST_CASE("memory of executing requests is held, and the rest is unused") {
  std::vector<std::byte> memory(4 * 8192);
  PathChunks chunks{8192};
  chunks.set(memory);
  std::array<ServerRequest, 4> requests;
  requests[1].state = ServerRequest::State::executing;
  requests[1].data = chunks.at(1).first(100);
  requests[2].state = ServerRequest::State::attached;
  requests[2].data = chunks.at(2);
  requests[3].state = ServerRequest::State::ended;
  requests[3].data = chunks.at(3);
  CHECK(PathChunks::held(requests) == 4096 + 8192);
  const auto unused = chunks.unused(requests);
  REQUIRE(unused.size() == 3);
  CHECK(unused[0].size() == 8192);
  CHECK(unused[1].data() == memory.data() + 8192 + 100);
  CHECK(unused[1].size() == 2 * 8192 - 100);
  CHECK(unused[2].empty());
}

}  // namespace
}  // namespace rtrs::session_parts_test
