// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/metrics/exposition.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace rnbd::exposition_test {

TEST_CASE("exposition: labels and help texts have escaped what would end them") {
  Exposition page;
  page.family("x", MetricType::gauge, "a \\ and\nan \"end\"");
  page.sample({{"name", "a\"b\\c\nd"}, {"op", "read"}}, std::uint64_t{7});
  page.sample({}, 0.25);
  CHECK(page.take() ==
        "# HELP rnbd_x a \\\\ and\\nan \"end\"\n"
        "# TYPE rnbd_x gauge\n"
        "rnbd_x{name=\"a\\\"b\\\\c\\nd\",op=\"read\"} 7\n"
        "rnbd_x 0.25\n");
}

TEST_CASE("exposition: a name of any bytes is UTF-8, and no two names become one") {
  Exposition page;
  page.family("x", MetricType::gauge, "x");
  for (const char* name : {"gr\u00F6\u00DFe", "bad\xff", "bad\uFFFDff", "\xED\xA0\x80"})
    page.sample({{"name", name}}, std::uint64_t{1});
  CHECK(page.take() ==
        "# HELP rnbd_x x\n# TYPE rnbd_x gauge\n"
        "rnbd_x{name=\"gr\u00F6\u00DFe\"} 1\n"
        "rnbd_x{name=\"bad\uFFFDff\"} 1\n"
        "rnbd_x{name=\"bad\uFFFDef\uFFFDbf\uFFFDbdff\"} 1\n"
        "rnbd_x{name=\"\uFFFDed\uFFFDa0\uFFFD80\"} 1\n");
}

TEST_CASE("exposition: a histogram adds its buckets up, and the last one has all") {
  MeterReading::Operations operations;
  operations.buckets[0] = 1;   // 1 us
  operations.buckets[3] = 2;   // 8 us
  operations.buckets[27] = 4;  // longer than any bound
  operations.timed = 7;
  operations.nanoseconds = 1'500'000'000;
  Exposition page;
  page.family("x", MetricType::histogram, "x");
  page.histogram({{"op", "read"}}, operations);
  const std::string text = page.take();
  for (const char* line : {"rnbd_x_bucket{op=\"read\",le=\"4e-06\"} 1\n",
                           "rnbd_x_bucket{op=\"read\",le=\"1.6e-05\"} 3\n",
                           "rnbd_x_bucket{op=\"read\",le=\"16.777216\"} 3\n",
                           "rnbd_x_bucket{op=\"read\",le=\"+Inf\"} 7\n",
                           "rnbd_x_sum{op=\"read\"} 1.5\n", "rnbd_x_count{op=\"read\"} 7\n"}) {
    CHECK_MESSAGE(text.find(line) != std::string::npos, line << text);
  }
}

}  // namespace rnbd::exposition_test
