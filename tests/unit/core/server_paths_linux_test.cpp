// SPDX-License-Identifier: BSD-3-Clause
// Sessions with several paths of clients without generations, as Linux's are.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::server_paths_linux_test {
namespace {

TEST_CASE("Linux: a write whose permit executes on another path is the same one, sent again") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  SUBCASE("equal: attached, and the older path is closed") {
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    CHECK(a.fenced);
    CHECK_FALSE(a.faulty);
    CHECK_FALSE(b.fenced);
    bench.handler.finish_oldest();
    CHECK(bench.handler.messages.size() == 1);
    CHECK(a.answer(1) == -1);
    CHECK(b.answer(1) == 0);
    CHECK(a.gone);
  }
  SUBCASE("equal once more: the path that waited is closed, too") {
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    TestPath c{bench.session};
    REQUIRE(c.write(1, 0, "one.") == nullptr);
    CHECK(b.fenced);
    bench.handler.finish_oldest();
    CHECK(b.answer(1) == -1);
    CHECK(c.answer(1) == 0);
  }
  SUBCASE("not the same: the first one was told as failed; the new one waits for its end") {
    SUBCASE("another message") { REQUIRE(b.write(1, 0, "two.") == nullptr); }
    SUBCASE("another length") { REQUIRE(b.write(1, 0, "one.", 0, 1024) == nullptr); }
    SUBCASE("other data") {
      b.memory[kChunk + 511] = std::byte{1};
      REQUIRE(b.write(1, 0, "one.") == nullptr);
    }
    CHECK(a.fenced);
    CHECK_FALSE(b.fenced);
    CHECK(bench.handler.running.size() == 1);
    bench.handler.finish_oldest(EIO);
    CHECK(b.answer(1) == -1);
    REQUIRE(bench.handler.running.size() == 1);
    bench.handler.finish_oldest();
    CHECK(b.answer(1) == 0);
  }
  SUBCASE("one that waits for the end of another goes with its path, or is sent again") {
    REQUIRE(b.write(1, 0, "two.") == nullptr);
    SUBCASE("gone") {
      b.close();
      bench.handler.finish_oldest();
      CHECK(bench.handler.messages.size() == 1);
      CHECK(bench.owner.gone == 1);
    }
    SUBCASE("again") {
      TestPath c{bench.session};
      REQUIRE(c.write(1, 0, "two.") == nullptr);
      CHECK(b.fenced);
      bench.handler.finish_oldest();
      bench.handler.finish_oldest();
      CHECK(c.answer(1) == 0);
      CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
    }
  }
  SUBCASE("another permit: another write") {
    REQUIRE(b.write(2, 0, "one.") == nullptr);
    CHECK_FALSE(a.fenced);
    CHECK(bench.handler.messages.size() == 2);
    bench.handler.finish_oldest();
    bench.handler.finish_oldest();
  }
}

TEST_CASE("Linux: an error of a write that was sent again is told late, too") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session};
  b.delays = true;
  REQUIRE(a.write(1, 0) == nullptr);
  REQUIRE(b.write(1, 0) == nullptr);
  bench.handler.finish_oldest(EIO);
  REQUIRE(b.delayed != nullptr);
  CHECK(b.answer(1) == -1);
  CHECK(bench.session.executing() == 1);
  SUBCASE("the path lives") {
    bench.session.answer(*b.delayed, EIO);
    CHECK(b.answer(1) == EIO);
  }
  SUBCASE("the path closes meanwhile") {
    b.close();
    CHECK_FALSE(b.gone);
    bench.session.answer(*b.delayed, EIO);
    CHECK(b.gone);
    CHECK(b.answer(1) == -1);
  }
}

TEST_CASE("Linux: a session ends with its last path and its last request, and never lingers") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session};
  a.close();
  CHECK_FALSE(bench.session.over());
  REQUIRE(b.write(1, 0) == nullptr);
  b.close();
  CHECK(bench.session.over());
  CHECK(bench.owner.lingered == 0);
  CHECK(bench.owner.gone == 0);
  bench.handler.finish_oldest();
  CHECK(bench.owner.gone == 1);
}

}  // namespace
}  // namespace rtrs::test::server_paths_linux_test
