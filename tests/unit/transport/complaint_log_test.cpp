// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/complaint_log.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace complaint_log_test {

using namespace rtrs;
using namespace std::chrono_literals;

namespace {

constexpr unsigned kBurst = ComplaintLog::Allowance{}.burst;

struct Lines {
  Log log() {
    return [this](LogLevel level, const std::string& line) {
      (level == LogLevel::debug ? for_debugging : all).push_back(line);
    };
  }
  std::vector<std::string> all;
  std::vector<std::string> for_debugging;
};

}  // namespace

TEST_CASE("complaints: the first are said, then one per period, with the number of the others") {
  Lines lines;
  ComplaintLog log{lines.log()};
  const ComplaintLog::Instant start{1h};
  for (int i = 0; i < 1000; ++i) log.say(LogLevel::warning, "no", start);
  CHECK(lines.all == std::vector<std::string>(kBurst, "no"));
  CHECK(lines.for_debugging.size() == 1000 - kBurst);
  for (int i = 0; i < 10; ++i) log.say(LogLevel::warning, "no", start + 10s);
  REQUIRE(lines.all.size() == kBurst + 1);
  CHECK(lines.all.back() == "no (980 lines before it were not logged)");
  log.say(LogLevel::warning, "no", start + 20s);
  CHECK(lines.all.back() == "no (9 lines before it were not logged)");
}

TEST_CASE(
    "complaints: a period begins with the first line, not at some full ten seconds before it") {
  Lines lines;
  ComplaintLog log{lines.log()};
  const ComplaintLog::Instant start{1h + 9s};
  for (unsigned i = 0; i < kBurst; ++i) log.say(LogLevel::warning, "no", start);
  lines.all.clear();
  log.say(LogLevel::warning, "no", start + 1s);
  log.say(LogLevel::warning, "no", start + 9s);
  CHECK(lines.all.empty());
  log.say(LogLevel::warning, "no", start + 10s);
  CHECK(lines.all == std::vector<std::string>{"no (2 lines before it were not logged)"});
}

TEST_CASE(
    "complaints: after a quiet time there is room for as many as in the beginning, not more") {
  Lines lines;
  ComplaintLog log{lines.log()};
  for (int i = 0; i < 100; ++i) log.say(LogLevel::warning, "no", ComplaintLog::Instant{1h});
  lines.all.clear();
  for (int i = 0; i < 100; ++i) log.say(LogLevel::warning, "no", ComplaintLog::Instant{9h});
  CHECK(lines.all.size() == kBurst);
  CHECK(lines.all.back() == "no");
}

TEST_CASE("complaints: harmless lines without end hide neither a warning nor an error") {
  Lines lines;
  ComplaintLog log{lines.log()};
  const ComplaintLog::Instant now{1h};
  for (int i = 0; i < 1000; ++i) log.say(LogLevel::info, "opened", now);
  lines.all.clear();
  log.say(LogLevel::warning, "protocol violation", now);
  log.say(LogLevel::error, "it hangs", now);
  CHECK(lines.all == std::vector<std::string>{"protocol violation", "it hangs"});
  log.say(LogLevel::info, "closed", now + 10s);
  CHECK(lines.all.back() == "closed (980 lines before it were not logged)");
}

TEST_CASE("complaints: what was left out is told before it is forgotten, and once") {
  Lines lines;
  ComplaintLog log{lines.log()};
  const ComplaintLog::Instant now{1h};
  for (unsigned i = 0; i < kBurst + 1; ++i) log.say(LogLevel::warning, "no", now);
  for (unsigned i = 0; i < kBurst + 5; ++i) log.say(LogLevel::info, "opened", now);
  lines.all.clear();
  log.settle("10.0.0.1");
  log.settle("10.0.0.1");
  CHECK(lines.all == std::vector<std::string>{"10.0.0.1: 5 lines were not logged",
                                              "10.0.0.1: 1 line was not logged"});
}

TEST_CASE("complaints: what is for debugging only takes no room, and is always said") {
  Lines lines;
  ComplaintLog log{lines.log(), {.burst = 1, .period = 1s}};
  const ComplaintLog::Instant now{1h};
  for (int i = 0; i < 100; ++i) log.say(LogLevel::debug, "detail", now);
  CHECK(lines.for_debugging.size() == 100);
  CHECK(log.is_rested(now));
  log.say(LogLevel::info, "news", now);
  CHECK(lines.all == std::vector<std::string>{"news"});
  CHECK_FALSE(log.is_rested(now));
  CHECK(log.is_rested(now + 1s));
}

}  // namespace complaint_log_test
