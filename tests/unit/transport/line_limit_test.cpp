// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/line_limit.hpp"

#include <doctest/doctest.h>

namespace line_limit_test {

using rtrs::LineLimit;
using namespace std::chrono_literals;

TEST_CASE("line limit: the number of lines left out comes with the next line, once") {
  LineLimit limit{{.burst = 2, .period = 10s}};
  CHECK(limit.take(1h) == 0);
  CHECK(limit.take(1h) == 0);
  CHECK_FALSE(limit.take(1h));
  CHECK_FALSE(limit.take(1h + 9s));
  CHECK(limit.take(1h + 10s) == 2);
  CHECK(limit.take(1h + 20s) == 0);
}

TEST_CASE("line limit: quiet periods give back as many lines, and never more than a burst") {
  LineLimit limit{{.burst = 3, .period = 10s}};
  while (limit.take(1h)) {
  }
  CHECK(limit.take(1h + 25s) == 1);
  CHECK(limit.take(1h + 25s) == 0);
  CHECK_FALSE(limit.take(1h + 25s));
  CHECK_FALSE(limit.is_rested(1h + 45s));
  CHECK(limit.is_rested(2h));
  int lines = 0;
  while (limit.take(3h)) ++lines;
  CHECK(lines == 3);
}

TEST_CASE("line limit: a clock that another thread has read earlier does no harm") {
  LineLimit limit{{.burst = 1, .period = 1s}};
  CHECK(limit.take(1h) == 0);
  CHECK_FALSE(limit.take(1h - 5s));
  CHECK_FALSE(limit.take(1h + 500ms));
  CHECK(limit.take(1h + 1s) == 2);
}

TEST_CASE("line limit: the lines that were left out are counted once, also without a next line") {
  LineLimit limit{{.burst = 1, .period = 1s}};
  limit.take(1h);
  limit.take(1h);
  CHECK(limit.take_left_out() == 1);
  CHECK(limit.take_left_out() == 0);
  CHECK(limit.take(2h) == 0);
}

}  // namespace line_limit_test
