// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/duration.hpp"

#include <doctest/doctest.h>

namespace duration_test {

using namespace std::chrono_literals;
using rtrs::parse_duration;

TEST_CASE("a bare number is seconds, with a fraction if there is one") {
  CHECK(*parse_duration("2") == 2s);
  CHECK(*parse_duration("1.5") == 1500ms);
  CHECK(*parse_duration(".25") == 250ms);
  CHECK(*parse_duration("0") == 0s);
}

TEST_CASE("a unit may follow the number") {
  CHECK(*parse_duration("3s") == 3s);
  CHECK(*parse_duration("100ms") == 100ms);
  CHECK(*parse_duration("0.1ms") == 100us);
  CHECK(*parse_duration("20us") == 20us);
  CHECK(*parse_duration("20\xC2\xB5s") == 20us);
  CHECK(*parse_duration("7ns") == 7ns);
  CHECK(*parse_duration("5min") == 5min);
  CHECK(*parse_duration("2h") == 2h);
}

TEST_CASE("anything else is no duration") {
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "1m", "1 s", "1e3", "0x10", "inf", "nan",
                           "ms", ".", "1..2", "1s2", "1e30", "99999999999999999999s"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("a duration out of its range says the range, and what was perhaps meant") {
  const rtrs::DurationRange range{.least = 10ms, .most = 60s};
  CHECK(*parse_duration("60", range) == 60s);
  CHECK(*parse_duration("10ms", range) == 10ms);
  const auto complaint = [](const char* text, const rtrs::DurationRange& allowed) {
    const auto duration = parse_duration(text, allowed);
    return duration ? "" : duration.error();
  };
  CHECK(complaint("500", range) ==
        "did you mean 500ms? A number alone is seconds, and '500' is not between 10ms and 60s");
  CHECK(complaint("61s", range) == "'61s' is not between 10ms and 60s");
  CHECK(complaint("9ms", range) == "'9ms' is not between 10ms and 60s");
  CHECK(complaint("0", range) == "'0' is not between 10ms and 60s");
  CHECK(complaint("100000", range) == "'100000' is not between 10ms and 60s");
  CHECK(complaint("7200", {}) ==
        "did you mean 7200ms? A number alone is seconds, and '7200' is not between 0 and 3600s");
  CHECK(complaint("x", range).find("is not a duration") != std::string::npos);
}

}  // namespace duration_test
