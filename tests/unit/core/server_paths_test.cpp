// Sessions with several paths: what becomes of requests that are sent again.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test {
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
  CHECK(bench.gone == 1);
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

// ---- Peers without generations ------------------------------------------------------------------

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
      CHECK(bench.gone == 1);
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

/// Two paths that are read together.
struct Together {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session};
  Together() { a.alone = b.alone = false; }
};

TEST_CASE("Linux: what lies unread on another path is judged together with its copy") {
  Together together;
  auto& [bench, a, b] = together;
  REQUIRE(b.write(1, 0, "one.") == nullptr);  // the copy; its sender has given up the other path
  CHECK(bench.handler.messages.empty());
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  REQUIRE(a.write(2, 0, "two.") == nullptr);
  bench.session.judge_pending();
  CHECK_FALSE(bench.session.has_pending());
  CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
  CHECK(bench.session.repeats().attached == 1);
  // Which of them is the dead one cannot be known.
  CHECK_FALSE(a.fenced);
  CHECK_FALSE(b.fenced);
  bench.handler.finish_oldest();
  CHECK(b.answer(1) == 0);
  CHECK(a.answer(1) == 0);
  a.pair.posts.clear();
  bench.handler.finish_oldest();
  CHECK(a.answer(2) == 0);
}

TEST_CASE("Linux: reads wait for the other paths, too, or reading would not come to an end") {
  Together together;
  auto& [bench, a, b] = together;
  REQUIRE(a.read(1) == nullptr);
  CHECK(bench.handler.running.empty());
  CHECK(a.path.unanswered() == 1);
  CHECK(a.read(1) != nullptr);  // its chunk is in use
  bench.session.judge_pending();
  REQUIRE(bench.handler.running.size() == 1);
  bench.handler.finish_oldest();
  CHECK(a.answer(1) == 0);
}

TEST_CASE("Linux: a path that closes takes with it what was read and not judged") {
  Together together;
  auto& [bench, a, b] = together;
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  REQUIRE(b.write(2, 0, "two.") == nullptr);
  a.close();
  CHECK(a.gone);
  bench.session.judge_pending();
  CHECK(bench.handler.messages == std::vector<std::string>{"two."});
  bench.handler.finish_oldest();
  REQUIRE(b.write(1, 0, "one.") == nullptr);  // the only path: nothing to wait for
  CHECK(bench.handler.running.size() == 1);
  bench.handler.finish_oldest();
}

TEST_CASE("Linux: one that is judged may close the path of the next") {
  Together together;
  auto& [bench, a, b] = together;
  TestPath c{bench.session};
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  bench.session.judge_pending();
  c.alone = false;
  REQUIRE(c.write(1, 0, "one.") == nullptr);  // its sender has given up the first path
  REQUIRE(a.write(2, 0, "late") == nullptr);
  REQUIRE(b.write(3, 0, "more") == nullptr);
  bench.session.judge_pending();
  CHECK(a.fenced);
  CHECK(bench.handler.messages == std::vector<std::string>{"one.", "more"});
  CHECK_FALSE(bench.session.has_pending());
  bench.handler.finish_oldest();
  CHECK(c.answer(1) == 0);
  bench.handler.finish_oldest();
}

TEST_CASE("Linux: a server reads until nothing comes any more, and then judges") {
  Together together;
  auto& [bench, a, b] = together;
  using Judged = ServerSession::Judged;
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  int looks = 0;
  SUBCASE("nothing more") {
    CHECK(bench.session.read_and_judge([&] { return ++looks != 0; }) == Judged::yes);
    CHECK(looks == 1);
  }
  SUBCASE("a copy of what was read last") {
    const auto read = [&] {
      if (++looks == 1) REQUIRE(b.write(1, 0, "one.") == nullptr);
      CHECK(bench.session.read_and_judge([] { return true; }) == Judged::yes);  // not twice
      CHECK(bench.handler.messages.empty());
      return true;
    };
    CHECK(bench.session.read_and_judge(read) == Judged::yes);
    CHECK(looks == 2);
    CHECK(bench.session.repeats().attached == 1);
  }
  SUBCASE("there is no end of it for the moment") {
    const auto read = [&] {
      const auto permit = static_cast<std::uint32_t>(++looks);
      if (permit < 4) REQUIRE(b.write(permit, 0, "more") == nullptr);
      return true;
    };
    CHECK(bench.session.read_and_judge(read) == Judged::later);
    CHECK(bench.handler.messages.empty());
    CHECK(bench.session.read_and_judge(read) == Judged::yes);
  }
  SUBCASE("one connection has more than can be read at once") {
    CHECK(bench.session.read_and_judge([] { return false; }) == Judged::no);
    CHECK(bench.session.has_pending());
    bench.session.judge_pending();
  }
  while (!bench.handler.running.empty()) bench.handler.finish_oldest();
}

TEST_CASE("Linux: a copy whose key is still being withdrawn is waited for") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session, /*new_keys=*/true}, b{bench.session};
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  REQUIRE(b.write(1, 0, "one.") == nullptr);
  REQUIRE(b.write(2, 0, "two.") == nullptr);
  CHECK(bench.handler.messages == std::vector<std::string>{"two."});
  CHECK(bench.session.has_pending());
  SUBCASE("until that has happened") {
    REQUIRE(a.handler->on_revoked(1) == nullptr);
    bench.session.judge_pending();
    CHECK(bench.session.repeats().attached == 1);
  }
  SUBCASE("until its path closes") {
    a.close();
    bench.session.judge_pending();
  }
  SUBCASE("not when the server stops: nobody reads any more") { bench.session.end(); }
  CHECK(bench.handler.messages == std::vector<std::string>{"two.", "one."});
  bench.handler.finish_oldest();
  bench.handler.finish_oldest();
}

TEST_CASE("Linux: an error of a write that was sent again is told late, too") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session};
  ServerRequest* delayed = nullptr;
  b.path.delay_answer = [&](ServerRequest& request, int) { delayed = &request; };
  REQUIRE(a.write(1, 0) == nullptr);
  REQUIRE(b.write(1, 0) == nullptr);
  bench.handler.finish_oldest(EIO);
  REQUIRE(delayed != nullptr);
  CHECK(b.answer(1) == -1);
  CHECK(bench.session.executing() == 1);
  SUBCASE("the path lives") {
    bench.session.answer(*delayed, EIO);
    CHECK(b.answer(1) == EIO);
  }
  SUBCASE("the path closes meanwhile") {
    b.close();
    CHECK_FALSE(b.gone);
    bench.session.answer(*delayed, EIO);
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
  CHECK(bench.lingered == 0);
  CHECK(bench.gone == 0);
  bench.handler.finish_oldest();
  CHECK(bench.gone == 1);
}

}  // namespace
}  // namespace rtrs::test
