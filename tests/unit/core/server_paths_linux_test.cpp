// Sessions with several paths of clients without generations, as Linux's are.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test {
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
