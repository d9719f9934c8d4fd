#include "rdma/duration.hpp"

#include <doctest/doctest.h>

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
}

TEST_CASE("anything else is no duration") {
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "1m", "1 s", "1e3", "0x10", "inf", "nan",
                           "ms", ".", "1..2", "1s2", "1e30", "99999999999999999999s"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text));
  }
}
