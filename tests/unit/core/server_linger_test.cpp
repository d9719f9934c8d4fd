// SPDX-License-Identifier: BSD-3-Clause
// How sessions with several paths begin and end.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::server_linger_test {
namespace {

TEST_CASE("a session comes up with its first path and goes down once") {
  Bench bench;
  {
    TestPath a{bench.session}, b{bench.session};
    CHECK(bench.handler.ups == 1);
    a.close();
    CHECK(a.gone);
    CHECK(bench.owner.lingered == 0);
    b.close();
    CHECK(bench.owner.lingered == 1);
    CHECK(bench.session.idle());
    CHECK(bench.handler.downs == 0);
    bench.session.on_linger_expired();
  }
  CHECK(bench.handler.downs == 1);
  CHECK(bench.owner.gone == 1);
}

TEST_CASE("a path that died lives on until its last request has ended") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  REQUIRE(a.read(2) == nullptr);
  a.close();
  bench.handler.finish_oldest();
  CHECK_FALSE(a.gone);
  bench.handler.finish_oldest();
  CHECK(a.gone);
  CHECK(a.answer(1) == -1);
  CHECK(bench.owner.lingered == 0);
}

TEST_CASE("a path that died holds what its requests execute in, and gives that back as they end") {
  Bench bench;
  TestPath a{bench.session};
  REQUIRE(a.write(0, 1) == nullptr);
  REQUIRE(a.read(2) == nullptr);
  REQUIRE(a.write(3, 1) == nullptr);
  a.close();
  CHECK(a.held == 3 * 4096);
  CHECK(a.kept(0) == 512);
  CHECK(a.kept(1) == 0);
  CHECK(a.kept(2) == 64);
  CHECK(a.kept(3) == 512);
  bench.handler.finish_oldest();
  CHECK(a.held == 2 * 4096);
  CHECK(a.kept(0) == 0);
  CHECK(a.kept(2) == 64);
  bench.handler.finish_oldest();
  CHECK(a.held == 4096);
  bench.handler.finish_oldest();
  CHECK(a.gone);
}

TEST_CASE("a path that lives, or holds nothing when it dies, gives nothing back by parts") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.write(0, 1) == nullptr);
  REQUIRE(a.write(1, 1) == nullptr);
  bench.handler.finish_oldest();
  CHECK_FALSE(a.held.has_value());
  // A request that was only to be answered together with another one executes nowhere.
  REQUIRE(b.write(1, 1) == nullptr);
  b.close();
  CHECK(b.gone);
  CHECK_FALSE(b.held.has_value());
  bench.handler.finish_oldest();
}

TEST_CASE("who comes back finds what became of its requests") {
  Bench bench;
  TestPath a{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  REQUIRE(a.write(2, 1) == nullptr);
  bench.handler.finish_oldest(ENOSPC);
  a.close();
  CHECK(bench.owner.lingered == 1);
  CHECK_FALSE(bench.session.idle());
  TestPath b{bench.session};
  CHECK(bench.handler.ups == 1);
  a.pair.posts.clear();
  REQUIRE(b.write(1, 1) == nullptr);
  CHECK(b.answer(1) == ENOSPC);
  b.pair.posts.clear();
  REQUIRE(b.write(2, 1) == nullptr);
  CHECK(b.answer(2) == -1);
  bench.handler.finish_oldest();
  CHECK(b.answer(2) == 0);
  CHECK(bench.handler.messages.size() == 2);
}

TEST_CASE("a session waits for its client as long as something executes, and may be joined") {
  Bench bench;
  TestPath a{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  a.close();
  bench.session.on_linger_expired();
  CHECK_FALSE(bench.session.over());
  SUBCASE("nobody comes") {
    bench.handler.finish_oldest();
    CHECK(bench.owner.gone == 1);
  }
  SUBCASE("a path joins") {
    TestPath b{bench.session};
    bench.handler.finish_oldest();
    CHECK(bench.owner.gone == 0);
    b.close();
    CHECK(bench.owner.gone == 0);
    CHECK(bench.session.idle());
  }
}

TEST_CASE("a goodbye ends the session at once, but for what executes") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  SUBCASE("nothing executes") {
    REQUIRE(a.immediate(wire::kGoodbye) == nullptr);
    CHECK(bench.owner.gone == 1);
  }
  SUBCASE("something does") {
    REQUIRE(b.write(1, 1) == nullptr);
    REQUIRE(a.immediate(wire::kGoodbye) == nullptr);
    CHECK(bench.session.over());
    CHECK(bench.owner.gone == 0);
    bench.handler.finish_oldest();
    CHECK(bench.owner.gone == 1);
  }
  CHECK(a.fenced);
  CHECK(b.fenced);
  CHECK_FALSE(a.faulty);
  CHECK(bench.owner.lingered == 0);
  CHECK(bench.handler.downs == 1);
  // The rest of the same batch is nobody's any more.
  CHECK(a.immediate(wire::kHeartbeat) == nullptr);
  CHECK(a.say_name("host") == nullptr);
}

TEST_CASE("a goodbye of a peer that cannot know it means nothing") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session};
  CHECK(a.immediate(wire::kGoodbye) == nullptr);
  CHECK_FALSE(a.closed());
}

TEST_CASE("only a session without paths and without running requests yields") {
  Bench bench;
  TestPath a{bench.session};
  CHECK_FALSE(bench.session.end_if_idle());
  REQUIRE(a.write(1, 1) == nullptr);
  a.close();
  CHECK_FALSE(bench.session.end_if_idle());
  bench.handler.finish_oldest();
  CHECK(bench.owner.lingered == 2);  // told again, now that it is idle
  CHECK(bench.session.end_if_idle());
  CHECK(bench.owner.gone == 1);
  CHECK_FALSE(bench.session.end_if_idle());
}

TEST_CASE("a hostile path does not hurt the session's other paths") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  CHECK(a.immediate(encode(wire::RequestImmediate{0, 8000}, 4)) != nullptr);
  a.close();
  CHECK_FALSE(b.fenced);
  REQUIRE(b.write(0, 1) == nullptr);
  bench.handler.finish_oldest();
  CHECK(b.answer(0) == 0);
}

TEST_CASE("the paths of a session have one name") {
  Bench bench;
  TestPath a{bench.session};
  PathOwner other{bench.session, {.cid_count = 1}};
  FakeQueuePair pair;
  QueuePairHandler& handler = other.path.add(0, pair);
  CHECK(handler.on_message(wire::bytes_of(wire::encode_info_request("else")), {}) != nullptr);
  CHECK(bench.session.name == "host");
  other.path.close();
  bench.session.on_path_closed(other.path);
}

TEST_CASE("a session that never had a name does not linger") {
  Bench bench;
  PathOwner other{bench.session, {.cid_count = 1}};
  other.path.close();
  bench.session.on_path_closed(other.path);
  CHECK(bench.owner.gone == 1);
  CHECK(bench.handler.ups + bench.handler.downs == 0);
}

}  // namespace
}  // namespace rtrs::test::server_linger_test
