// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/request_meter.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <vector>

namespace request_meter_test {

using namespace rnbd::nbd;
using namespace std::chrono_literals;

TEST_CASE(
    "request meter: failures without end make a line a second, with the number of the others") {
  std::vector<std::string> lines;
  const rtrs::Log log = [&](rtrs::LogLevel, const std::string& line) { lines.push_back(line); };
  const std::string device = "disk0";
  RequestMeter meter{device, nullptr, log};
  Request request;
  request.command = Command::write;
  request.length = 512;
  const std::chrono::steady_clock::time_point start{1h + 900ms};
  for (int i = 0; i < 100; ++i) meter.report(request, EIO, start + i * 10ms);
  CHECK(lines.size() == 1);
  meter.report(request, EOPNOTSUPP, start + 1s);
  CHECK(lines.size() == 1);
  meter.report(request, EIO, start + 1s);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].starts_with("'disk0': write of 512 bytes at 0: "));
  CHECK(lines[1] == lines[0] + " (and 99 other failures before)");
}

}  // namespace request_meter_test
