// SPDX-License-Identifier: BSD-3-Clause
// Sessions of clients without generations, as Linux's are: what is read of several paths together.
#include <cerrno>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::server_together_linux_test {
namespace {

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

TEST_CASE(
    "Linux: copies that are read together are carried out once, though the first ends at once") {
  Together together;
  auto& [bench, a, b] = together;
  TestPath c{bench.session};
  c.alone = false;
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  SUBCASE("two") {
    bench.handler.at_once = 0;
    SUBCASE("success") {}
    SUBCASE("failure: of both") { bench.handler.at_once = EIO; }
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    bench.session.judge_pending();
    CHECK(bench.handler.messages == std::vector<std::string>{"one."});
    CHECK(a.answer(1) == *bench.handler.at_once);
    CHECK(b.answer(1) == *bench.handler.at_once);
    CHECK_FALSE(a.fenced);
    CHECK_FALSE(b.fenced);
  }
  SUBCASE("three") {
    bench.handler.at_once = 0;
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    REQUIRE(c.write(1, 0, "one.") == nullptr);
    bench.session.judge_pending();
    CHECK(bench.handler.messages == std::vector<std::string>{"one."});
    CHECK(bench.session.repeats().attached == 2);
    CHECK(b.answer(1) == 0);
    CHECK(c.answer(1) == 0);
  }
  SUBCASE("not one that differs: it is carried out behind them") {
    bench.handler.at_once = 0;
    REQUIRE(b.write(1, 0, "two.") == nullptr);
    REQUIRE(c.write(1, 0, "one.") == nullptr);
    bench.session.judge_pending();
    CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
    CHECK(bench.session.repeats().attached == 1);
    CHECK(b.answer(1) == 0);
  }
  SUBCASE("not reads") {
    bench.handler.at_once = 0;
    REQUIRE(b.read(2) == nullptr);
    REQUIRE(c.read(2) == nullptr);
    bench.session.judge_pending();
    CHECK(bench.handler.messages == std::vector<std::string>{"one.", "read", "read"});
    CHECK(b.answer(2) == 0);
    CHECK(c.answer(2) == 0);
  }
  SUBCASE("the path of the first one dies before they are judged") {
    bench.handler.at_once = 0;
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    REQUIRE(c.write(1, 0, "one.") == nullptr);
    a.close();
    bench.session.judge_pending();
    CHECK(bench.handler.messages == std::vector<std::string>{"one."});
    CHECK(b.answer(1) == 0);
    CHECK(c.answer(1) == 0);
  }
  SUBCASE("the server stops") {
    bench.handler.at_once = 0;
    REQUIRE(b.write(1, 0, "one.") == nullptr);
    bench.session.end();
    CHECK(bench.handler.messages == std::vector<std::string>{"one."});
    CHECK(b.answer(1) == 0);
  }
  SUBCASE("they waited for the end of an older write") {
    bench.session.judge_pending();
    REQUIRE(b.write(1, 0, "two.") == nullptr);
    REQUIRE(c.write(1, 0, "two.") == nullptr);
    bench.session.judge_pending();
    CHECK(a.fenced);
    bench.handler.at_once = 0;
    bench.handler.finish_oldest();
    CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
    CHECK(b.answer(1) == 0);
    CHECK(c.answer(1) == 0);
  }
  CHECK(bench.session.executing() == 0);
}

TEST_CASE(
    "Linux: the path of one that is judged is closed for another one before it is carried out") {
  Together together;
  auto& [bench, a, b] = together;
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  bench.session.judge_pending();
  REQUIRE(a.write(2, 0, "two.") == nullptr);
  REQUIRE(b.write(1, 0, "one.") == nullptr);  // its sender has given up the first path
  REQUIRE(b.write(2, 0, "two.") == nullptr);
  bench.session.judge_pending();
  CHECK(a.fenced);
  CHECK(bench.handler.messages == std::vector<std::string>{"one.", "two."});
  bench.handler.finish_oldest();
  CHECK(b.answer(1) == 0);
  b.pair.posts.clear();
  CHECK_FALSE(a.gone);
  bench.handler.finish_oldest();
  CHECK(b.answer(2) == 0);
  CHECK(a.gone);
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
  Bench& bench = together.bench;
  TestPath &a = together.a, &b = together.b;  // lambdas take no bindings before Clang 16
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

TEST_CASE("Linux: all copies wait for one whose key is still being withdrawn, or none") {
  Bench bench{/*exactly_once=*/false};
  TestPath a{bench.session}, b{bench.session}, c{bench.session, /*new_keys=*/true};
  a.alone = b.alone = false;
  REQUIRE(c.write(2, 0, "two.") == nullptr);
  REQUIRE(c.handler->on_revoked(2) == nullptr);
  bench.session.judge_pending();
  REQUIRE(c.write(1, 0, "one.") == nullptr);  // not withdrawn yet
  REQUIRE(a.write(1, 0, "one.") == nullptr);
  REQUIRE(b.write(2, 0, "two.") == nullptr);
  REQUIRE(b.write(1, 0, "one.") == nullptr);
  bench.session.judge_pending();
  CHECK(c.fenced);  // for permit 2, when it was known already that permit 1 has to wait
  CHECK(bench.handler.messages == std::vector<std::string>{"two."});
  bench.handler.at_once = 0;
  bench.session.judge_pending();
  CHECK(bench.handler.messages == std::vector<std::string>{"two.", "one."});
  CHECK(a.answer(1) == 0);
  CHECK(b.answer(1) == 0);
  bench.handler.finish_oldest();
}

}  // namespace
}  // namespace rtrs::test::server_together_linux_test
