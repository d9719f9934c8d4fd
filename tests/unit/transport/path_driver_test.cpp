// SPDX-License-Identifier: BSD-3-Clause
// One generation of a path in an event loop that belongs to the test.
#include "rdma/transport/client/path_driver.hpp"

#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/transport/echo.hpp"

namespace rtrs::path_driver_test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kInterval = 100ms;

/// A path to a port, and its owner.
struct Bench final : PathDriverOwner {
  explicit Bench(std::uint16_t port) {
    const auto [kind, host] = test::test_transport();
    driver = std::make_shared<PathDriver>(
        reactor, core,
        ConnectOptions{.address = {kind, "", host, port}, .addresses = {}, .log = {}},
        std::make_shared<HostLookup>(host), "test", 10s, *this, PathLife{});
  }
  ~Bench() { driver->close(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void on_ready(PathLife) override {}
  void on_lost(PathLife, const Failure& failure) override {
    lost = failure.text;
    reactor.stop();
  }
  bool on_heartbeat(PathLife) override {
    if (++beats == 1 && on_first) on_first();
    return false;
  }
  void on_latency(PathLife, Duration) override {}
  void on_access(PathLife) override {}
  void on_recall() override {}
  void flush_all() override {}

  ClientPath core{ClientPathOptions{.session_name = "test",
                                    .session_uuid = {1},
                                    .path_uuid = {2},
                                    .heartbeat_interval = kInterval}};
  std::string lost;
  int beats = 0;
  std::function<void()> on_first;
  Reactor reactor{0};
  std::shared_ptr<PathDriver> driver;
};

TEST_CASE("a path may be closed before its attempt to connect has begun") {
  Bench bench{1};
  Alarm alarm{bench.reactor.alarms()};
  Alarm end{bench.reactor.alarms()};
  end.set(20ms, [&] { bench.reactor.stop(); });
  // Events at hand when it starts come before the attempt.
  const auto start = [&] {
    boost::asio::post(bench.reactor.io(), [&] { bench.driver->close(); });
    bench.driver->start();
  };
  SUBCASE("outside the loop") { start(); }
  SUBCASE("in an alarm") { alarm.set(1ms, start); }
  SUBCASE("in an event") { boost::asio::post(bench.reactor.io(), start); }
  SUBCASE("at once") {
    bench.driver->start();
    bench.driver->close();
  }
  CHECK_NOTHROW(bench.reactor.run());
  CHECK(bench.lost.empty());
}

TEST_CASE("a path is not judged while what has arrived is unread") {
  test::EchoServer server;
  Bench bench{server.port};
  // Each turn of the loop takes longer than an interval, so that its alarms come before its events.
  constexpr int kTurns = 8;
  int turns = 0;
  bench.on_first = [&] {
    for (int i = 0; i < kTurns; ++i) {
      boost::asio::post(bench.reactor.io(), [&] {
        std::this_thread::sleep_for(kInterval + 10ms);
        if (++turns == kTurns) bench.reactor.stop();
      });
    }
  };
  bench.driver->start();
  bench.reactor.run();
  CHECK(bench.lost == "");
  CHECK(turns == kTurns);
  CHECK(bench.beats >= kTurns - 1);
}

}  // namespace
}  // namespace rtrs::path_driver_test
