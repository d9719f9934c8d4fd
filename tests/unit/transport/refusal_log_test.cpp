// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/refusal_log.hpp"

#include <string>
#include <vector>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::refusal_log_test {
namespace {

using namespace std::chrono_literals;

struct Lines {
  Log log() {
    return [this](LogLevel level, const std::string& line) {
      (level == LogLevel::debug ? for_debugging : all).push_back(line);
    };
  }
  std::vector<std::string> all;
  std::vector<std::string> for_debugging;
};

TEST_CASE("a host that is turned away again and again is named once, and once a minute how often") {
  Lines lines;
  RefusalLog log{lines.log()};
  const Instant start{1h};
  for (int i = 0; i < 100; ++i) {
    log.say(LogLevel::warning, "10.0.0.1:" + std::to_string(40000 + i), "full", start + i * 500ms);
  }
  CHECK(lines.all == std::vector<std::string>{"10.0.0.1:40000: full"});
  REQUIRE(lines.for_debugging.size() == 99);
  CHECK(lines.for_debugging.back() == "10.0.0.1:40099: full");
  log.say(LogLevel::warning, "10.0.0.1:50000", "full", start + 60s);
  REQUIRE(lines.all.size() == 2);
  CHECK(lines.all[1] == "10.0.0.1:50000: full (99 more like this were not logged)");
  log.say(LogLevel::warning, "10.0.0.1:50001", "full", start + 130s);
  REQUIRE(lines.all.size() == 3);
  CHECK(lines.all[2] == "10.0.0.1:50001: full");
}

TEST_CASE("another host and another reason are news") {
  Lines lines;
  RefusalLog log{lines.log()};
  for (int i = 0; i < 3; ++i) {
    log.say(LogLevel::warning, "10.0.0.1:4", "full", Instant{1h});
    log.say(LogLevel::warning, "10.0.0.2:4", "full", Instant{1h});
    log.say(LogLevel::warning, "10.0.0.1:4", "too old", Instant{1h});
    log.say(LogLevel::warning, "[fd00::1]:4", "full", Instant{1h});
  }
  CHECK(lines.all.size() == 4);
}

TEST_CASE("hosts without number cost no memory without end, and are not all named") {
  Lines lines;
  RefusalLog log{lines.log()};
  const auto visit = [&](Instant now) {
    for (int i = 0; i < 100000; ++i) {
      log.say(LogLevel::warning, std::to_string(i) + ":1", "full", now);
    }
  };
  visit(Instant{1h});
  CHECK(lines.all.size() < 300);
  lines.all.clear();
  visit(Instant{2h});
  CHECK(lines.all.size() < 300);
  CHECK(lines.all.size() > 1);
}

TEST_CASE("a host with a whole network of IPv6 is named a few times, and hides nobody else") {
  Lines lines;
  RefusalLog log{lines.log()};
  for (int i = 0; i < 1000; ++i) {
    log.say(LogLevel::warning, "[fd00:0:0:1::" + std::to_string(i) + "]:4", "full", Instant{1h});
  }
  CHECK(lines.all.size() == 17);
  log.say(LogLevel::warning, "[fd00:0:0:1::7]:4", "too old", Instant{1h});
  log.say(LogLevel::warning, "[fd00:0:0:2::1]:4", "full", Instant{1h});
  CHECK(lines.all.size() == 19);
}

AuthRefusal refusal(const std::string& peer, const std::string& user) {
  return {peer, "tcp:0.0.0.0:1234", user, "tls-psk", "no such key"};
}

TEST_CASE(
    "who has proven nothing is named with all that it said, and can write no line of its own") {
  Lines lines;
  RefusalLog log{lines.log()};
  log.audit(refusal("10.0.0.1:4", "host1"), Instant{1h});
  log.audit(refusal("10.0.0.1:5", "a\" how=ok\nauth ok\xff"), Instant{1h});
  CHECK(lines.all == std::vector<std::string>{
                         "auth refused peer=10.0.0.1:4 listener=tcp:0.0.0.0:1234 user=host1 "
                         "how=tls-psk why=\"no such key\"",
                         "auth refused peer=10.0.0.1:5 listener=tcp:0.0.0.0:1234 "
                         "user=\"a\\\" how=ok\\\\x0aauth ok\\\\xff\" how=tls-psk "
                         "why=\"no such key\""});
}

TEST_CASE("a host that tries many names hides no other host") {
  Lines lines;
  RefusalLog log{lines.log()};
  for (int i = 0; i < 1000; ++i) {
    log.audit(refusal("10.0.0.1:4", "guess" + std::to_string(i)), Instant{1h});
  }
  CHECK(lines.all.size() > 10);
  CHECK(lines.all.size() < 20);
  CHECK(lines.all.size() + lines.for_debugging.size() == 1000);
  log.audit(refusal("10.0.0.2:4", "host2"), Instant{1h});
  CHECK(lines.all.back().find("user=host2") != std::string::npos);
}

TEST_CASE("a server that refuses a client a hundred times says so once") {
  Lines lines;
  ServerOptions options;
  options.log = lines.log();
  {
    EchoServer server{options};
    for (int i = 0; i < 100; ++i) {
      RawClient stranger{server.port};
      auto p = parameters(1, 2, 9);  // of a session that is not there
      p.first_connection = false;
      stranger.hello(p);
      CHECK(stranger.answer() == ENXIO);
    }
  }
  CHECK(lines.all.size() == 1);
}

}  // namespace
}  // namespace rtrs::test::refusal_log_test
