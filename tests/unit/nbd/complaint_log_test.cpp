#include "bridge/nbd/complaint_log.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace rnbd::nbd;
using namespace std::chrono_literals;

namespace {

struct Lines {
  rtrs::Log log() {
    return [this](rtrs::LogLevel level, const std::string& line) {
      (level == rtrs::LogLevel::debug ? for_debugging : all).push_back(line);
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
  for (int i = 0; i < 1000; ++i) log.say(rtrs::LogLevel::warning, "no", start);
  CHECK(lines.all == std::vector<std::string>(ComplaintLog::kBurst, "no"));
  CHECK(lines.for_debugging.size() == 1000 - ComplaintLog::kBurst);
  for (int i = 0; i < 10; ++i) log.say(rtrs::LogLevel::warning, "no", start + 10s);
  REQUIRE(lines.all.size() == ComplaintLog::kBurst + 1);
  CHECK(lines.all.back() == "no (980 complaints before it were not logged)");
  log.say(rtrs::LogLevel::warning, "no", start + 20s);
  CHECK(lines.all.back() == "no (9 complaints before it were not logged)");
}

TEST_CASE(
    "complaints: after a quiet time there is room for as many as in the beginning, not more") {
  Lines lines;
  ComplaintLog log{lines.log()};
  for (int i = 0; i < 100; ++i) log.say(rtrs::LogLevel::warning, "no", ComplaintLog::Instant{1h});
  lines.all.clear();
  for (int i = 0; i < 100; ++i) log.say(rtrs::LogLevel::warning, "no", ComplaintLog::Instant{9h});
  CHECK(lines.all.size() == ComplaintLog::kBurst);
  CHECK(lines.all.back() == "no");
}
