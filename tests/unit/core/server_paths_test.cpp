// SPDX-License-Identifier: BSD-3-Clause
// Sessions with several paths: what becomes of requests that are sent again, with generations.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::server_paths_test {
namespace {

// ---- The table of docs/protocol.md, RTRS extension ----------------------------------------------

TEST_CASE("accepts tell the session's epochs and what the server thinks of the path") {
  Bench bench;
  TestPath a{bench.session};
  const auto extension = a.path.accept_parameters().extension;
  CHECK(extension.session_epoch == 77);
  CHECK(extension.volatile_epoch == 88);
  CHECK(extension.access == wire::PathAccess::non_optimized);
}

TEST_CASE("a newer generation is carried out, without its trailer, and answered on its path") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  CHECK(bench.handler.ups == 1);
  REQUIRE(a.write(1, 1, "one.") == nullptr);
  bench.handler.finish_oldest(EIO);
  CHECK(a.answer(1) == EIO);
  REQUIRE(b.write(1, 2, "two.") == nullptr);
  bench.handler.finish_oldest();
  CHECK(b.answer(1) == 0);
  CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
}

TEST_CASE("a newer generation while the last one runs ends the session") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  REQUIRE(b.write(1, 2) == nullptr);
  CHECK(a.fenced);
  CHECK(b.fenced);
  CHECK(b.faulty);
  CHECK(bench.session.over());
  CHECK_FALSE(bench.session.gone());
  CHECK(bench.handler.messages.size() == 1);
  bench.handler.finish_oldest();
  CHECK(bench.owner.gone == 1);
  CHECK(bench.handler.downs == 1);
  CHECK(a.answer(1) == -1);
}

TEST_CASE("the same generation while it runs is answered with it, on its own path") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session}, c{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  REQUIRE(b.write(1, 1) == nullptr);
  REQUIRE(c.write(1, 1) == nullptr);
  CHECK(bench.handler.messages.size() == 1);
  CHECK(b.path.unanswered() == 1);
  SUBCASE("all live") {
    bench.handler.finish_oldest(ENOSPC);
    CHECK(a.answer(1) == ENOSPC);
    CHECK(b.answer(1) == ENOSPC);
    CHECK(c.answer(1) == ENOSPC);
    CHECK(b.path.unanswered() == 0);
    CHECK(bench.session.repeats().attached == 2);
  }
  SUBCASE("the path on which it executes has closed") {
    a.close();
    CHECK_FALSE(a.gone);
    bench.handler.finish_oldest(ENOSPC);
    CHECK(a.gone);
    CHECK(a.answer(1) == -1);
    CHECK(b.answer(1) == ENOSPC);
  }
  SUBCASE("a path that waits for it closes: it goes at once") {
    b.close();
    CHECK(b.gone);
    bench.handler.finish_oldest();
    CHECK(b.answer(1) == -1);
    CHECK(c.answer(1) == 0);
  }
}

TEST_CASE("the same generation after its end is answered from memory") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.write(1, 1) == nullptr);
  bench.handler.finish_oldest(ENOSPC);
  REQUIRE(b.write(1, 1) == nullptr);
  CHECK(bench.handler.messages.size() == 1);
  CHECK(b.answer(1) == ENOSPC);
  CHECK(bench.session.repeats().answered == 1);
}

TEST_CASE("an older generation is dropped without an answer, and its chunk is free again") {
  for (const std::uint32_t newest : {7U, 0x8000'0000U}) {
    for (const bool ended : {true, false}) {
      CAPTURE(newest);
      CAPTURE(ended);
      Bench bench;
      TestPath a{bench.session}, b{bench.session};
      REQUIRE(b.write(1, newest) == nullptr);
      if (ended) bench.handler.finish_oldest();
      for (int i = 0; i < 3; ++i) REQUIRE(a.write(1, newest - 1) == nullptr);
      CHECK(bench.handler.messages.size() == 1);
      CHECK(a.answer(1) == -1);
      CHECK(a.path.unanswered() == 0);
      CHECK(bench.session.repeats().dropped == 3);
      if (!ended) bench.handler.finish_oldest();
      CHECK(b.answer(1) == 0);
    }
  }
}

TEST_CASE("with races an older generation is answered with ESTALE, and not carried out") {
  Bench bench{/*exactly_once=*/true, wire::kFeatureRaces};
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(b.write(1, 7) == nullptr);
  REQUIRE(a.write(1, 6) == nullptr);
  CHECK(a.answer(1) == ESTALE);
  CHECK(a.path.unanswered() == 0);
  CHECK(bench.handler.messages.size() == 1);
  CHECK(bench.session.repeats().dropped == 1);
  bench.handler.finish_oldest();
  CHECK(b.answer(1) == 0);
}

TEST_CASE("settle: what was not begun is not carried out, what was is answered") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  SUBCASE("never seen") {
    REQUIRE(a.write(1, 5, "text", wire::kSettle) == nullptr);
    CHECK(a.answer(1) == ECANCELED);
    CHECK(bench.handler.messages.empty());
    // The copy that was on its way all the time.
    REQUIRE(b.write(1, 5) == nullptr);
    CHECK(b.answer(1) == ECANCELED);
    REQUIRE(b.write(1, 6) == nullptr);
    CHECK(bench.handler.messages.size() == 1);
    bench.handler.finish_oldest();
  }
  SUBCASE("it runs") {
    REQUIRE(a.write(1, 5) == nullptr);
    REQUIRE(b.write(1, 5, "text", wire::kSettle) == nullptr);
    CHECK(b.answer(1) == -1);
    bench.handler.finish_oldest(ENOSPC);
    CHECK(b.answer(1) == ENOSPC);
  }
  SUBCASE("it has ended") {
    REQUIRE(a.write(1, 5) == nullptr);
    bench.handler.finish_oldest(ENOSPC);
    REQUIRE(b.write(1, 5, "text", wire::kSettle) == nullptr);
    CHECK(b.answer(1) == ENOSPC);
  }
  SUBCASE("without data, as its sender has none any more") {
    REQUIRE(a.write(1, 5, "text", wire::kSettle, 0) == nullptr);
    CHECK(a.answer(1) == ECANCELED);
  }
}

TEST_CASE("reads are carried out whenever they come, each in its own path's chunk") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  REQUIRE(a.read(1) == nullptr);
  REQUIRE(b.read(1) == nullptr);
  REQUIRE(bench.handler.running.size() == 2);
  CHECK(bench.handler.running[0]->data.data() == a.memory.data() + kChunk);
  CHECK(bench.handler.running[1]->data.data() == b.memory.data() + kChunk);
  a.close();
  bench.handler.finish_oldest(EIO);
  bench.handler.finish_oldest();
  CHECK(a.answer(1) == -1);
  CHECK(b.answer(1) == 0);
}

TEST_CASE("a write without room for a generation, or twice on one path, breaks the path") {
  Bench bench;
  TestPath a{bench.session}, b{bench.session};
  CHECK(a.write(1, 0) != nullptr);
  REQUIRE(b.write(2, 1) == nullptr);
  CHECK(b.write(2, 1) != nullptr);
  bench.handler.finish_oldest();
}

}  // namespace
}  // namespace rtrs::test::server_paths_test
