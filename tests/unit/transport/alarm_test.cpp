// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/alarm.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "rdma/transport/reactor.hpp"

namespace rtrs::alarm_test {
namespace {

using namespace std::chrono_literals;

/// The loop ends behind the alarms of this time.
void run_for(Reactor& reactor, Duration time) {
  Alarm end{reactor.alarms()};
  end.set(time, [&] { reactor.stop(); });
  reactor.run();
}

TEST_CASE("an alarm that is due, but was not heard yet, is still set anew, or off") {
  Reactor reactor{0};
  std::optional<Alarm> alarm{reactor.alarms()};
  int old = 0;
  int newer = 0;
  bool expects_newer = false;
  std::function<void()> act;
  SUBCASE("set anew") {
    expects_newer = true;
    const auto newer_one = [&] {
      ++newer;
      reactor.stop();
    };
    act = [&, newer_one] { alarm->set(1ms, newer_one); };
  }
  SUBCASE("cancelled") {
    act = [&] { alarm->cancel(); };
  }
  SUBCASE("destroyed") {
    act = [&] { alarm.reset(); };
  }
  alarm->set(5ms, [&] { ++old; });
  const Instant expiry = now() + 6ms;
  boost::asio::post(reactor.io(), [&] {
    while (now() < expiry) {
    }
    act();
  });
  run_for(reactor, expects_newer ? Duration{10s} : Duration{20ms});
  CHECK(old == 0);
  CHECK(newer == (expects_newer ? 1 : 0));
}

TEST_CASE("an alarm goes off once for each setting") {
  Reactor reactor{0};
  Alarm alarm{reactor.alarms()};
  Alarm end{reactor.alarms()};
  int calls = 0;
  const auto last = [&] {
    ++calls;
    end.set(10ms, [&] { reactor.stop(); });
  };
  alarm.set(1ms, [&] {
    ++calls;
    alarm.set(1ms, last);
  });
  reactor.run();
  CHECK(calls == 2);
}

TEST_CASE("alarms go off in the order of their times, and one may end itself or another") {
  Alarms alarms;
  std::vector<int> order;
  std::optional<Alarm> first{alarms};
  Alarm second{alarms};
  std::optional<Alarm> third{alarms};
  CHECK(alarms.next() == Instant::max());
  third->set(3s, [&] { order.push_back(3); });
  second.set(2s, [&] {
    order.push_back(2);
    third.reset();
  });
  first->set(1s, [&] {
    order.push_back(1);
    first.reset();
  });
  alarms.ring(now());
  CHECK(order.empty());
  CHECK(alarms.next() <= now() + 1s);
  alarms.ring(now() + 1500ms);
  CHECK(order == std::vector{1});
  alarms.ring(now() + 1h);
  CHECK(order == std::vector{1, 2});
  CHECK(alarms.next() == Instant::max());
}

TEST_CASE("an alarm with slack waits for another event, and not beyond its slack") {
  Alarms alarms;
  Alarm alarm{alarms};
  int calls = 0;
  const Instant begin = now();
  alarm.set(
      1s, [&] { ++calls; }, 500ms);
  CHECK(alarms.next() >= begin + 1500ms);
  alarms.ring(begin + 900ms);
  CHECK(calls == 0);
  alarms.ring(now() + 1s);
  CHECK(calls == 1);
}

TEST_CASE("an alarm for ever is far away") {
  Alarms alarms;
  Alarm alarm{alarms};
  int calls = 0;
  alarm.set(Duration::max(), [&] { ++calls; });
  alarms.ring(now() + 1h);
  CHECK(calls == 0);
  CHECK(alarms.next() > now() + 1h);
}

TEST_CASE("a busy loop hears its alarms") {
  Reactor reactor{0};
  int turns = 0;
  std::function<void()> again = [&] {
    ++turns;
    boost::asio::post(reactor.io(), again);
  };
  again();
  run_for(reactor, 20ms);
  CHECK(turns > 1);
}

/// Others wake it all the time, and it sleeps in between.
TEST_CASE(
    "a loop that sleeps for an alarm again and again hears it, and one that comes before it") {
  Reactor reactor{0};
  Alarm far{reactor.alarms()};
  Alarm near{reactor.alarms()};
  std::atomic<bool> over{false};
  int rings = 0;
  int turns = 0;
  Instant set_at{};
  const auto second = [&] {
    ++rings;
    CHECK(now() >= set_at + 20ms);
    reactor.stop();
  };
  const auto first = [&] {
    ++rings;
    set_at = now();
    near.set(20ms, second);
  };
  far.set(1h, [&] { reactor.stop(); });
  std::thread other{[&] {
    while (!over) {
      boost::asio::post(reactor.io(), [&] {
        if (++turns == 50) near.set(1ms, first);
      });
      std::this_thread::sleep_for(100us);
    }
  }};
  reactor.run();
  over = true;
  other.join();
  CHECK(rings == 2);
}

TEST_CASE("a loop that ends while it is busy leaves nothing that refers to it") {
  std::optional<Reactor> reactor{0};
  Alarm later{reactor->alarms()};
  later.set(1ms, [] {});
  for (int round = 0; round < 3; ++round) {
    int turns = 0;
    std::function<void()> again = [&] {
      if (++turns == 100) return reactor->stop();
      boost::asio::post(reactor->io(), again);
    };
    again();
    reactor->run();
    reactor->io().restart();
  }
  later.cancel();
}

TEST_CASE("an alarm that is always due keeps no event from the loop") {
  Reactor reactor{0};
  Alarm alarm{reactor.alarms()};
  int rings = 0;
  bool came = false;
  std::function<void()> again = [&] {
    if (++rings == 1'000'000) return reactor.stop();
    alarm.set(Duration::zero(), again);
  };
  again();
  boost::asio::post(reactor.io(), [&] {
    came = true;
    reactor.stop();
  });
  reactor.run();
  CHECK(came);
}

}  // namespace
}  // namespace rtrs::alarm_test
