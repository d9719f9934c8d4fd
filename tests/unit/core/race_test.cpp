// SPDX-License-Identifier: BSD-3-Clause
// The race between a lane's connections: when requests leave one that is silent, and what becomes
// of its late answers.
#include "rdma/core/client/race.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <utility>

#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::race_test {
namespace {

using namespace std::chrono_literals;

/// Two paths, or three, and a clock. A witness that lives answers each question at the next look.
struct RaceBench : Bench {
  explicit RaceBench(std::uint32_t max_size = 4096, unsigned paths = 2) {
    max_io_size = max_size;
    races = true;
    for (unsigned path = 0; path < paths; ++path) attach(path);
    lane.race(now);
  }
  bool is_question(const FakeQueuePair::Post& post) const {
    return post.immediate == wire::kHeartbeat;
  }
  /// Answers the questions that came since the last time.
  void answer_questions(unsigned path) {
    for (; seen[path] < posts(path); ++seen[path]) {
      if (!is_question(queue_pairs[path].posts[seen[path]])) continue;
      REQUIRE(lane.connection(path).on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
      lane.note_answer(path, now);
    }
  }
  /// Looks each 50 ms. Paths of `live` answer questions.
  Raced look_for(Duration time, unsigned live) {
    Raced all;
    for (const Instant end = now + time; now < end;) {
      now += 50ms;
      for (unsigned path = 0; path < 3; ++path) {
        if ((live >> path & 1) != 0) answer_questions(path);
      }
      const Raced raced = lane.race(now);
      all += raced;
      all.silent = raced.silent;
    }
    return all;
  }
  std::size_t requests(unsigned path) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        queue_pairs[path].posts, [this](const auto& post) { return !is_question(post); }));
  }
  Instant now{1h};
  std::size_t seen[3] = {0, 0, 0};
};

TEST_CASE("a connection that owes answers and says nothing is dead after some intervals") {
  Race race;
  const auto interval = [&](std::uint64_t received, bool owes) {
    if (race.look(Instant{}, received, owes)) race.on_carried(Instant{}, 0);
    return race.on_interval(/*misses_max=*/2);
  };
  for (int i = 0; i < 10; ++i) CHECK(interval(7, /*owes=*/false));
  for (unsigned i = 1; i <= 3; ++i) {
    CHECK(interval(7, true));
    CHECK(race.silence() == i);
  }
  CHECK_FALSE(interval(7, true));
  CHECK(race.silence() == 3);
  CHECK(interval(8, true));
  CHECK(race.silence() == 0);
  for (std::uint64_t bytes : {0, 1024}) race.on_carried(Instant{}, bytes);  // they move
  CHECK(interval(8, true));
  CHECK(race.silence() == 0);
}

TEST_CASE("a request leaves a path that is silent while another one answers") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  REQUIRE(bench.requests(0) == 1);
  const Raced raced = bench.look_for(350ms, 0b10);
  CHECK(raced.silent == 0b01);
  CHECK(raced.answers == 0b10);
  CHECK(raced.moved == 1);
  REQUIRE(bench.requests(1) == 1);
  CHECK(bench.lane.permits().owes(request.slot) == 0b01);
  SUBCASE("the other path's answer ends it, the late one frees the permit's place") {
    CHECK(bench.reply(1, request.slot) == nullptr);
    CHECK(request.calls == 1);
    CHECK(bench.lane.permits().owing() == 1);
    CHECK(bench.reply(0, request.slot, ESTALE) == nullptr);
    CHECK(bench.lane.permits().owing() == 0);
    CHECK(request.calls == 1);
    CHECK(request.error == 0);
  }
  SUBCASE("a late answer ends nothing") {
    CHECK(bench.reply(0, request.slot) == nullptr);
    CHECK(request.calls == 0);
    CHECK(bench.lane.permits().owes(request.slot) == 0);
    CHECK(bench.reply(0, request.slot) != nullptr);
  }
  SUBCASE("the loss of the silent path ends what it owes") {
    bench.lane.detach(0, bench.now);
    CHECK(bench.lane.permits().owes(request.slot) == 0);
    CHECK(bench.reply(1, request.slot) == nullptr);
    CHECK(request.calls == 1);
  }
  SUBCASE("newer requests avoid the silent path until something comes over it") {
    TestRequest next, third;
    bench.lane.submit(next);
    CHECK(bench.requests(0) == 1);
    CHECK(bench.requests(1) == 2);
    CHECK(bench.reply(0, request.slot) == nullptr);
    CHECK(bench.reply(1, request.slot) == nullptr);
    CHECK(bench.look_for(50ms, 0b11).silent == 0);
    bench.lane.submit(third);
    CHECK(bench.requests(0) == 2);
  }
}

TEST_CASE("a request that leaves a silent path meets none that fell silent a moment later") {
  RaceBench bench{4096, /*paths=*/3};
  TestRequest request;
  bench.lane.submit(request);
  REQUIRE(bench.requests(0) == 1);
  CHECK(bench.look_for(150ms, 0b110).moved == 0);
  SUBCASE("it answered the first question") {
    CHECK(bench.look_for(150ms, 0b100).moved == 1);
    CHECK(bench.requests(1) == 0);
    CHECK(bench.requests(2) == 1);
  }
  SUBCASE("newer requests avoid it as well") {
    CHECK(bench.look_for(100ms, 0b100).silent == 0);
    TestRequest next;
    bench.lane.submit(next);
    CHECK(bench.requests(2) == 1);
  }
  SUBCASE("it is of a better class") {
    bench.lane.use(0b011, PathPolicy::min_inflight);
    CHECK(bench.look_for(150ms, 0b100).moved == 1);
    CHECK(bench.requests(2) == 1);
  }
}

TEST_CASE("without a path that answers, or with a server that does not race, nothing is moved") {
  RaceBench bench;
  TestRequest request;
  SUBCASE("the server stands still") {
    bench.lane.submit(request);
    CHECK(bench.look_for(5s, 0).silent == 0);
  }
  SUBCASE("slow storage") {
    bench.lane.submit(request);
    CHECK(bench.look_for(5s, 0b11).silent == 0);
  }
  SUBCASE("the other path is inaccessible") {
    bench.lane.allow(1, false);
    bench.lane.submit(request);
    CHECK(bench.look_for(5s, 0b10).silent == 0);
  }
  SUBCASE("the feature is not agreed on") {
    bench.lane.detach(0);
    bench.lane.detach(1);
    bench.races = false;
    bench.attach(0);
    bench.attach(1);
    bench.lane.submit(request);
    CHECK(bench.look_for(5s, 0b10).silent == 0);
    CHECK(bench.posts(1) == 0);
  }
  CHECK(bench.requests(1) == 0);
}

TEST_CASE("a client that stood still judges nobody by that") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  bench.look_for(50ms, 0b11);
  bench.now += 10s;
  CHECK(bench.look_for(50ms, 0b11).silent == 0);  // asks
  bench.now += 10s;
  CHECK(bench.look_for(1s, 0b11).silent == 0);
  CHECK(bench.requests(1) == 0);
}

TEST_CASE("a permit never goes over a path that owes an answer for it") {
  RaceBench bench;
  TestRequest first, second, third;
  bench.lane.submit(first);   // path 0
  bench.lane.submit(second);  // path 1
  bench.look_for(350ms, 0b10);
  CHECK(bench.requests(1) == 2);
  CHECK(bench.reply(1, first.slot) == nullptr);
  CHECK(bench.reply(1, second.slot) == nullptr);
  // The other path falls silent, and this one comes back, but not with the late answer.
  bench.lane.submit(third);
  CHECK(third.slot == second.slot);  // one that owes nothing goes first
  bench.look_for(350ms, 0b01);
  CHECK(bench.requests(0) == 2);
  TestRequest fourth;
  bench.lane.submit(fourth);
  CHECK(bench.requests(0) == 2);  // its permit owes path 0 an answer, and path 1 is silent
  CHECK(bench.reply(0, first.slot, ESTALE) == nullptr);
  CHECK(bench.requests(0) == 3);
}

TEST_CASE("memory in which a device works stays with its connection") {
  RaceBench bench;
  TestRequest read{true};
  bench.queue_pairs[0].in_place = true;
  bench.lane.submit(read);
  CHECK(bench.look_for(350ms, 0b10).moved == 0);
  CHECK(bench.requests(1) == 0);
}

TEST_CASE("a request without data has no memory in which a device works") {
  RaceBench bench;
  TestRequest flush;
  flush.write_data = {};
  bench.queue_pairs[0].in_place = true;  // of an older request with the same permit
  bench.lane.submit(flush);
  CHECK(bench.look_for(350ms, 0b10).moved == 1);
}

TEST_CASE("nobody is asked where no other path could testify") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  SUBCASE("it is inaccessible") { bench.lane.allow(1, false); }
  SUBCASE("it is lost") { bench.lane.detach(1, bench.now); }
  bench.look_for(1s, 0b10);
  CHECK(bench.posts(0) == 1);
  CHECK(bench.posts(1) == 0);
}

TEST_CASE("what leaves a silent path is withdrawn there, and its unsent data are copied") {
  RaceBench bench;
  TestRequest read{true}, change;
  bench.lane.use(0b01, PathPolicy::min_inflight);
  bench.lane.submit(read);
  bench.lane.submit(change);
  REQUIRE(bench.requests(0) == 2);
  bench.queue_pairs[0].sent_up_to = 0;
  bench.look_for(350ms, 0b10);
  CHECK(bench.queue_pairs[0].exposed.empty());
  CHECK(bench.queue_pairs[1].exposed.size() == 1);
  CHECK(bench.queue_pairs[0].disowned == 1);
  const auto& first = bench.queue_pairs[0].posts[1];
  const auto& posts = bench.queue_pairs[1].posts;
  const auto& again = *std::find_if_not(posts.rbegin(), posts.rend(),
                                        [&](const auto& post) { return bench.is_question(post); });
  CHECK(again.header == first.header);  // the same generation
}

TEST_CASE("no more than 4 MiB are sent again at a time") {
  constexpr std::uint32_t kLarge = 3U << 20;
  RaceBench bench{kLarge};
  TestRequest first, second;
  for (TestRequest* request : {&first, &second}) {
    request->buffer.resize(kLarge);
    request->write_data = request->buffer;
  }
  bench.lane.use(0b01, PathPolicy::min_inflight);
  bench.lane.submit(first);
  bench.lane.submit(second);
  bench.look_for(350ms, 0b10);
  CHECK(bench.requests(1) == 1);
  CHECK(bench.reply(1, first.slot) == nullptr);
  CHECK(bench.requests(1) == 2);
}

/// One request after the other on a lane whose two paths carry bytes at a rate, in order.
struct SlowBench : Bench {
  SlowBench(bool read, bool with_races) : request{read} {
    max_io_size = kSize;
    races = with_races;
    attach(0);
    attach(1);
    lane.race(now);
    request.buffer.resize(kSize);
    if (read) request.read_data = request.buffer;
    if (!read) request.write_data = request.buffer;
    lane.submit(request);
  }
  /// True: the path has something to carry.
  bool take_posts(unsigned path) {
    for (; seen[path] < posts(path); ++seen[path]) {
      const bool asks = queue_pairs[path].posts[seen[path]].immediate == wire::kHeartbeat;
      pipe[path].push_back(asks ? kQuestion : kSize);
      if (!asks) ++copies;
    }
    return !pipe[path].empty();
  }
  /// Carries so many bytes on the path.
  void carry(unsigned path, double bytes) {
    queue_pairs[path].bytes_carried += static_cast<std::uint64_t>(bytes);
    while (!pipe[path].empty() && bytes >= pipe[path].front().left) {
      bytes -= pipe[path].front().left;
      const bool asks = pipe[path].front().size == kQuestion;
      pipe[path].pop_front();
      if (!asks) REQUIRE(reply(path, request.slot) == nullptr);
      if (!asks) continue;
      REQUIRE(lane.connection(path).on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
      lane.note_answer(path, now);
    }
    if (!pipe[path].empty()) pipe[path].front().left -= bytes;
  }

  static constexpr unsigned kSize = 256 * 1024;
  static constexpr unsigned kQuestion = 32;
  struct Message {
    unsigned size;
    double left = size;
    Message(unsigned bytes) : size{bytes} {}
  };
  Instant now{1h};
  TestRequest request;
  std::deque<Message> pipe[2];
  std::size_t seen[2] = {0, 0};
  unsigned copies = 0;
};

TEST_CASE("a request that takes long to transfer stays where its bytes move") {
  for (const bool read : {true, false}) {
    SlowBench bench{read, /*with_races=*/true};
    const Instant begin = bench.now;
    for (int ms = 1; bench.request.calls == 0 && ms < 60'000; ++ms) {
      for (unsigned path = 0; path < 2; ++path) {
        if (bench.take_posts(path)) bench.carry(path, 800);  // 0.8 MB/s
      }
      bench.now += 1ms;
      if (ms % 50 == 0) bench.lane.race(bench.now);
    }
    CHECK(bench.request.calls == 1);
    CHECK(bench.now - begin < 350ms);
    CHECK(bench.copies == 1);
  }
}

/// Requests that end in a time where many lanes share the rate of two paths.
unsigned ended_by_many(bool with_races) {
  constexpr unsigned kLanes = 75;
  constexpr double kRate = 62'500;  // bytes per millisecond and path
  std::deque<SlowBench> lanes;
  for (unsigned i = 0; i < kLanes; ++i) lanes.emplace_back(/*read=*/true, with_races);
  unsigned ended = 0;
  for (int ms = 1; ms <= 5'000; ++ms) {
    for (unsigned path = 0; path < 2; ++path) {
      const auto busy =
          std::ranges::count_if(lanes, [path](SlowBench& lane) { return lane.take_posts(path); });
      for (SlowBench& lane : lanes) {
        if (!lane.pipe[path].empty()) lane.carry(path, kRate / static_cast<double>(busy));
      }
    }
    for (SlowBench& lane : lanes) {
      lane.now += 1ms;
      if (with_races && ms % 50 == 0) lane.lane.race(lane.now);
      if (std::exchange(lane.request.calls, 0) == 0) continue;
      ++ended;
      lane.request.state = Request::State::idle;
      lane.lane.submit(lane.request);
    }
  }
  return ended;
}

TEST_CASE("many large requests at a time take turns, and none of them is sent again for that") {
  const unsigned without = ended_by_many(false);
  CHECK(without > 1'000);
  CHECK(ended_by_many(true) >= without * 95 / 100);
}

TEST_CASE("a request goes once to each path, and again where the path has come again") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  bench.look_for(350ms, 0b10);
  REQUIRE(bench.requests(1) == 1);
  CHECK(bench.reply(0, request.slot) == nullptr);  // late; nothing is owed any more
  SUBCASE("the second path falls silent, too") {
    bench.look_for(5s, 0b01);
    CHECK(bench.requests(0) == 1);
    CHECK(bench.requests(1) == 1);
  }
  SUBCASE("the second path is lost") {
    bench.lane.detach(1, bench.now);
    CHECK(bench.requests(0) == 2);
  }
  SUBCASE("the first path has come again meanwhile") {
    bench.lane.detach(0, bench.now);
    bench.attach(0);
    bench.look_for(350ms, 0b01);
    CHECK(bench.requests(0) == 2);
  }
}

TEST_CASE("a witness that says nothing for ever is given up") {
  RaceBench bench;
  TestRequest request;
  bench.lane.use(0b01, PathPolicy::min_inflight);
  bench.lane.submit(request);
  bench.look_for(1s, 0b01);  // storage is slow; the other path is asked, and has been forgotten
  REQUIRE(bench.lane.connection(1).silence() == 0);
  CHECK(bench.reply(0, request.slot) == nullptr);
  constexpr unsigned kMisses = 4;
  unsigned intervals = 0;
  while (bench.lane.probe(1, kMisses, bench.now) && intervals < 100) {
    bench.look_for(500ms, 0b01);
    CHECK(bench.lane.probe(0, kMisses, bench.now));
    ++intervals;
  }
  CHECK(intervals == kMisses + 1);
  bench.lane.detach(1, bench.now);
  bench.look_for(100ms, 0b01);
  CHECK(bench.lane.at_rest());
}

TEST_CASE("a request that a live server holds does not fail with another path") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  bench.look_for(350ms, 0b10);
  REQUIRE(bench.requests(1) == 1);
  bench.lane.detach(1, bench.now);  // the first path lives again, and storage hangs
  const auto fails_after = [&](Duration time, unsigned live) {
    for (const Instant end = bench.now + time; bench.now < end;) {
      bench.look_for(500ms, live);
      bench.lane.probe(0, 4, bench.now);
    }
    return bench.lane.overdue(bench.now - 5s);
  };
  CHECK_FALSE(fails_after(40s, 0b01));
  SUBCASE("until that path is mute, too") { CHECK(fails_after(2s, 0b00)); }
  SUBCASE("and ends with the answer to a copy") {
    CHECK(bench.reply(0, request.slot) == nullptr);  // of the one that has left
    REQUIRE(bench.requests(0) == 2);
    CHECK(bench.reply(0, request.slot) == nullptr);
    CHECK(request.calls == 1);
    CHECK(request.error == 0);
  }
}

TEST_CASE("an acknowledged question alone is no life of a connection") {
  RaceBench bench;
  TestRequest request;
  bench.lane.submit(request);
  bench.look_for(150ms, 0b10);
  bench.queue_pairs[0].bytes_carried += 48;
  CHECK(bench.look_for(200ms, 0b10).moved == 1);
  SUBCASE("and ends no silence, but bytes do") {
    bench.queue_pairs[0].bytes_carried += 48;
    CHECK(bench.look_for(50ms, 0b10).silent == 0b01);
    bench.queue_pairs[0].bytes_carried += 4096;
    CHECK(bench.look_for(50ms, 0b10).silent == 0);
  }
}

TEST_CASE("three silences within ten seconds are too many") {
  Silences silences;
  const Instant now{1h};
  CHECK_FALSE(silences.begin(now, now));
  CHECK(silences.since() == now);
  silences.end();
  CHECK_FALSE(silences.since());
  CHECK_FALSE(silences.begin(now + 4s, now));
  CHECK(silences.begin(now + 10s, now));
  CHECK_FALSE(silences.begin(now + 15s, now));
}

}  // namespace
}  // namespace rtrs::race_test
