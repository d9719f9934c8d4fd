// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "rdma/log_about.hpp"
#include "rdma/transport/client/notices.hpp"

namespace rtrs::client_notices_test {
namespace {

using namespace std::chrono_literals;
using Kind = Notice::Kind;

constexpr Instant kStart{1h};

/// A session with paths to a, b ..., and its log.
struct Bench {
  explicit Bench(std::vector<std::string> hosts) : options{make_options(std::move(hosts))} {
    options.log = [this](LogLevel level, const std::string& text) {
      lines.emplace_back(level, text);
    };
  }

  static ClientOptions make_options(std::vector<std::string> hosts) {
    ClientOptions made;
    made.session_name = "s";
    for (std::string& host : hosts) {
      made.paths.push_back({.source = "", .host = std::move(host), .port = 1});
    }
    return made;
  }

  void report(const Notice& notice, Instant now = kStart) { notices.report(notice, now); }
  bool said(LogLevel level, const std::string& text) const {
    return lines.size() == 1 && lines.front() == std::pair{level, text};
  }

  ClientOptions options;
  ClientNotices notices{options};
  std::vector<std::pair<LogLevel, std::string>> lines;
};

}  // namespace

TEST_CASE("notices: good news is as loud as the trouble that it ends") {
  Bench bench{{"a"}};
  bench.report({.kind = Kind::path_up});
  CHECK(bench.said(LogLevel::info, "session 's': path to a:1 is up"));
  bench.lines.clear();
  bench.report({.kind = Kind::path_lost, .cause = {EIO, "it is {name}"}});
  CHECK(bench.said(LogLevel::warning, "session 's': path to a:1 is lost: it is {name}"));
  bench.lines.clear();
  bench.report({.kind = Kind::path_up});
  CHECK(bench.said(LogLevel::warning, "session 's': path to a:1 is up"));
}

TEST_CASE("notices: the log is told which event a line is, and whom it is about") {
  Bench bench{{"a", "b"}};
  std::vector<std::string> facts;
  bench.options.log = [&](LogLevel, const std::string&) {
    const LogFacts* now = LogAbout::now();
    REQUIRE(now != nullptr);
    facts.push_back(std::string{now->event} + " " + std::string{now->session} + " " +
                    std::string{now->path} + " " + std::to_string(now->error));
  };
  bench.report({.kind = Kind::path_lost, .path = 1, .cause = {EIO, "gone"}});
  bench.report({.kind = Kind::paths_in_use, .paths = 1});
  bench.report({.kind = Kind::requests_fail});
  CHECK(facts == std::vector<std::string>{"path_lost s tcp:b:1 " + std::to_string(EIO),
                                          "paths_in_use s  0", "requests_fail s  0"});
  CHECK(LogAbout::now() == nullptr);
}

TEST_CASE("notices: a path that cannot be reached is reported once, until it was up") {
  Bench bench{{"a", "b"}};
  const Notice unreachable{.kind = Kind::path_unreachable, .path = 1, .cause = {EIO, "no"}};
  bench.report(unreachable);
  bench.report(unreachable);
  CHECK(bench.said(LogLevel::warning, "session 's': path to b:1: no"));
  bench.report({.kind = Kind::path_up, .path = 1});
  bench.report(unreachable);
  CHECK(bench.lines.size() == 3);
}

TEST_CASE("notices: the refusal of an only path is left to the failure of its session") {
  const Notice refused{.kind = Kind::path_refused, .cause = {EACCES, "no"}};
  Bench alone{{"a"}};
  alone.report(refused);
  CHECK(alone.lines.empty());
  Bench among_others{{"a", "b"}};
  among_others.report(refused);
  CHECK(among_others.said(LogLevel::warning, "session 's': path tcp:a:1: no"));
}

TEST_CASE("notices: requests in vain are reported once a minute") {
  Bench bench{{"a"}};
  for (const Duration at : {0s, 59s, 60s, 61s}) {
    bench.report({.kind = Kind::requests_overdue}, kStart + at);
  }
  CHECK(bench.lines.size() == 2);
}

TEST_CASE("notices: a cause has the errno of its kind, or its own") {
  const Bench bench{{"a"}};
  const Failure other = bench.notices.failure_of(Cause{Cause::Kind::other_session});
  CHECK(other.error == ESTALE);
  CHECK(other.text.starts_with("a:1: it has another session"));
  const Failure transport = bench.notices.failure_of({ECONNRESET, "cut"});
  CHECK(transport.error == ECONNRESET);
  CHECK(transport.text == "cut");
  Cause less{Cause::Kind::other_limits};
  less.had.queue_depth = 256;
  less.has.queue_depth = 16;
  CHECK(bench.notices.failure_of(less).text.find("(queue depth 16, which was 256)") !=
        std::string::npos);
}

}  // namespace rtrs::client_notices_test
