// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/client_log.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::client_log_test {
namespace {

using namespace std::chrono_literals;
constexpr unsigned kBurst = ClientLog::kAllowance.burst;

struct Lines {
  Log log() {
    return [this](LogLevel level, const std::string& line) {
      const std::lock_guard lock{mutex};
      (level == LogLevel::debug ? for_debugging : all).push_back(line);
    };
  }
  std::mutex mutex;
  std::vector<std::string> all;
  std::vector<std::string> for_debugging;
};

TEST_CASE("a host that fills the log is cut short, whatever its port, and others are not") {
  Lines lines;
  ClientLog log{lines.log()};
  const ComplaintLog::Instant now{1h};
  for (int i = 0; i < 1000; ++i) {
    log.say(LogLevel::info, "10.0.0.1:" + std::to_string(40000 + i), "opened", now);
  }
  CHECK(lines.all.size() == kBurst);
  CHECK(lines.for_debugging.size() == 1000 - kBurst);
  log.say(LogLevel::info, "10.0.0.2:1", "opened, too", now);
  CHECK(lines.all.back() == "opened, too");
  log.say(LogLevel::info, "10.0.0.1:1", "closed", now + 1s);
  CHECK(lines.all.back() == "closed (800 lines before it were not logged)");
}

TEST_CASE("a host with a whole network of IPv6 has a few allowances, and others keep theirs") {
  Lines lines;
  ClientLog log{lines.log()};
  const ComplaintLog::Instant start{1h};
  const auto come = [&](unsigned n, ComplaintLog::Instant now) {
    log.say(LogLevel::info, "[fd00:0:0:1::" + std::to_string(n % 9999) + "]:4", "opened", now);
  };
  for (unsigned n = 0; n < 9000; ++n) come(n, start);
  CHECK(lines.all.size() == ClientLog::kMaxHostsOfNetwork + kBurst);
  log.say(LogLevel::info, "[fd00:0:0:2::1]:4", "opened, too", start);
  CHECK(lines.all.back() == "opened, too");
  lines.all.clear();
  constexpr unsigned kSeconds = 60;
  for (unsigned n = 0; n < kSeconds * 100; ++n) come(n, start + n * 10ms);
  CHECK(lines.all.size() <= (kSeconds + 1) * (3 * ClientLog::kMaxHostsOfNetwork));
}

TEST_CASE("a host is not forgotten before it was said how many of its lines were left out") {
  Lines lines;
  {
    ClientLog log{lines.log()};
    for (unsigned i = 0; i < kBurst + 7; ++i) {
      log.say(LogLevel::info, "10.0.0.1:1", "opened", ComplaintLog::Instant{1h});
    }
    lines.all.clear();
    for (std::size_t i = 0; i < ClientLog::kMaxHosts; ++i) {
      log.say(LogLevel::info, std::to_string(i) + ":1", "x", ComplaintLog::Instant{2h});
    }
    CHECK(std::count(lines.all.begin(), lines.all.end(), "10.0.0.1: 7 lines were not logged") == 1);
    for (unsigned i = 0; i < kBurst + 2; ++i) {
      log.say(LogLevel::info, "0:1", "opened", ComplaintLog::Instant{2h});
    }
  }
  CHECK(lines.all.back() == "0: 3 lines were not logged");  // one more came before
}

TEST_CASE("hosts without number cost no memory without end: those beyond share an allowance") {
  Lines lines;
  ClientLog log{lines.log()};
  const auto visit = [&](int first, ComplaintLog::Instant now) {
    for (int i = first; i < first + 2000; ++i) {
      log.say(LogLevel::info, std::to_string(i) + ":1", "opened", now);
    }
  };
  visit(0, ComplaintLog::Instant{1h});
  CHECK(lines.all.size() == ClientLog::kMaxHosts + kBurst);
  lines.all.clear();
  visit(2000, ComplaintLog::Instant{2h});  // the others have been quiet since
  CHECK(lines.all.size() == ClientLog::kMaxHosts + kBurst + 1);
  const auto unsaid = 2000 - ClientLog::kMaxHosts - kBurst;
  CHECK(std::count(lines.all.begin(), lines.all.end(),
                   "other hosts: " + std::to_string(unsaid) + " lines were not logged") == 1);
}

TEST_CASE("a client that comes and goes all the time does not fill the server's log") {
  Lines lines;
  ServerOptions options;
  options.log = lines.log();
  const auto start = std::chrono::steady_clock::now();
  {
    EchoServer server{options};
    for (int id = 1; id <= 240; ++id) RawSession{server, static_cast<std::uint8_t>(id)};
  }
  const auto seconds = (std::chrono::steady_clock::now() - start) / 1s;
  CHECK(lines.all.size() >= kBurst);
  CHECK(lines.all.size() <= kBurst + static_cast<std::size_t>(seconds) + 2);
}

}  // namespace
}  // namespace rtrs::test::client_log_test
