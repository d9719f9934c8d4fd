// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include "bridge/client/device_table.hpp"

namespace rnbd {

using namespace std::chrono_literals;

TEST_CASE("patience: a device that holds up others is lost after several refusals and some time") {
  const RefusalPatience::TimePoint begin{100s};
  RefusalPatience patience;
  CHECK(patience.lasts(begin));
  for (int i = 0; i < 3; ++i) {
    CHECK(patience.lasts(begin + 20s));
    patience.note(true, begin + i * 1s);
  }
  CHECK(patience.lasts(begin + 9s));
  CHECK_FALSE(patience.lasts(begin + 10s));
}

TEST_CASE("patience: while all are refused nobody is held up, however long that takes") {
  const RefusalPatience::TimePoint begin{100s};
  RefusalPatience patience;
  for (int i = 0; i < 60; ++i) patience.note(false, begin + i * 1s);
  CHECK(patience.lasts(begin + 60s));
  patience.note(true, begin + 60s);
  patience.note(true, begin + 61s);
  patience.note(true, begin + 62s);
  CHECK(patience.lasts(begin + 69s));
  patience.note(false, begin + 69s);
  CHECK(patience.lasts(begin + 80s));
}

}  // namespace rnbd
