// SPDX-License-Identifier: BSD-3-Clause
// Limits of operations and bytes per second: who waits, how long, and who is next.
#include "bridge/server/throttle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "tests/unit/server/fixture.hpp"

namespace throttle_test {

using namespace rnbd;
using namespace rnbd::test;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

std::uint64_t the_time = 0;

/// Time is the test's.
struct LimitWorld : World {
  struct Timer {
    std::uint64_t due;
    std::weak_ptr<void> token;
    std::function<void()> work;
  };

  LimitWorld() {
    the_time = 1'000'000'000;
    services.clock = [] { return the_time; };
    services.on_after = [this](rtrs::Reactor*, rtrs::Duration time, std::function<void()> work) {
      auto token = std::make_shared<int>();
      const auto due = the_time + static_cast<std::uint64_t>(nanoseconds{time}.count());
      timers.push_back({due, token, std::move(work)});
      return token;
    };
    services.on_later = [this](rtrs::Reactor*, std::function<void()> work) {
      posted.push_back(std::move(work));
    };
    services.on_offload = [](rtrs::Reactor*, const std::function<void()>& work,
                             const std::function<void()>& then) {
      if (work) work();
      if (then) then();
    };
    services.on_record = services.on_offload;
  }

  std::unique_ptr<BlockSession> session_with(const std::string& name, QueueTable& its_queues,
                                             std::shared_ptr<Throttle> throttle = nullptr) {
    SessionFacts facts;
    facts.name = name;
    facts.extensions = true;
    facts.queue_depth = 64;
    facts.max_io_size = 65536;
    facts.throttle = std::move(throttle);
    return std::make_unique<BlockSession>(facts, catalogue, its_queues, services);
  }
  std::unique_ptr<BlockSession> session_of(const std::string& name) {
    return session_with(name, queues);
  }
  void run_posted() {
    while (!posted.empty()) {
      const auto work = std::move(posted.front());
      posted.pop_front();
      work();
    }
  }
  /// With all timers that end meanwhile, each at its time.
  void pass(nanoseconds time) {
    const std::uint64_t end = the_time + static_cast<std::uint64_t>(time.count());
    for (;;) {
      const auto next = std::ranges::min_element(timers, {}, &Timer::due);
      if (next == timers.end() || next->due > end) break;
      const Timer timer = std::move(*next);
      timers.erase(next);
      the_time = timer.due;
      if (!timer.token.expired()) timer.work();
      run_posted();
    }
    the_time = end;
  }
  bool no_timer() const {
    return std::ranges::all_of(timers, [](const Timer& timer) { return timer.token.expired(); });
  }
  /// A limit of an export, as a reload sets it.
  void limit(const std::string& name, Limits limits) {
    ExportSpecification specification;
    specification.name = name;
    specification.limits = limits;
    CatalogueChange wanted;
    wanted.update = {specification};
    REQUIRE(catalogue.change(std::move(wanted), false).empty());
  }
  Call& read(BlockSession& session, std::size_t bytes = 512, std::uint32_t id = 0) {
    return io(session, 0x100, 0, static_cast<std::uint32_t>(bytes), true, bytes, id);
  }
  std::vector<Call*> reads(BlockSession& session, int count, std::size_t bytes = 512,
                           std::uint32_t id = 0) {
    std::vector<Call*> calls;
    for (int n = 0; n < count; ++n) calls.push_back(&read(session, bytes, id));
    return calls;
  }

  std::vector<Timer> timers;
  std::deque<std::function<void()>> posted;
};

long ended(const std::vector<Call*>& calls) {
  return std::ranges::count_if(calls, [](const Call* call) { return call->finished == 1; });
}

}  // namespace

TEST_CASE("limits: without one nobody waits, and no timer runs") {
  LimitWorld world;
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  CHECK(ended(world.reads(*session, 50)) == 50);
  CHECK(world.no_timer());
}

TEST_CASE("limits: as many operations end as the limit says, and none is refused") {
  LimitWorld world;
  world.limit("disk", {.iops = 10});
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  const auto calls = world.reads(*session, 40);
  CHECK(ended(calls) == 2);  // a tenth of a second's worth, and the one that uses it up
  world.pass(1s);
  CHECK(ended(calls) == 12);
  world.pass(1s);
  CHECK(ended(calls) == 22);
  world.pass(2s);
  for (const Call* call : calls) CHECK(call->error == 0);
  CHECK(world.no_timer());
  const ThrottleReading reading = world.catalogue.throttle_of("disk")->reading();
  CHECK(reading.waiting == 0);
  CHECK(reading.waited == 38);
  CHECK(reading.nanoseconds > 38 * 100'000'000ULL);
}

TEST_CASE("limits: bytes are counted of reads and writes, also of those larger than the limit") {
  LimitWorld world;
  world.limit("disk", {.bandwidth = 65536});
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  const auto calls = world.reads(*session, 4, 65536);
  CHECK(ended(calls) == 1);
  world.pass(1s);
  CHECK(ended(calls) == 2);
  world.pass(1s);
  CHECK(ended(calls) == 3);
  world.pass(1s);
  CHECK(ended(calls) == 4);
}

TEST_CASE("limits: a pause is not saved up") {
  LimitWorld world;
  world.limit("disk", {.iops = 10});
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  world.pass(1h);
  CHECK(ended(world.reads(*session, 40)) == 2);
  world.pass(10s);
}

TEST_CASE("limits: sessions share an export equally, however much each of them asks for") {
  LimitWorld world;
  world.limit("disk", {.iops = 100});
  const auto many = world.session_of("many"), one = world.session_of("one");
  world.open(*many, "disk", wire::AccessMode::read_only);
  world.open(*one, "disk", wire::AccessMode::read_only);
  const auto calls = world.reads(*many, 1000);
  // One at a time, the next as soon as it has ended.
  unsigned alone = 0;
  std::function<void()> next = [&] {
    Call& call = world.read(*one);
    if (call.finished == 0) {
      call.on_finish = [&] {
        ++alone;
        world.posted.push_back(next);
      };
    } else {
      ++alone;
    }
  };
  next();
  const long before = ended(calls);
  world.pass(2s);
  const long others = ended(calls) - before;
  CHECK(others + alone == 200);
  CHECK(alone >= 98);
  CHECK(alone <= 102);
  next = [] {};
  world.limit("disk", {});
  world.pass(1s);
}

TEST_CASE("limits: other exports go on meanwhile, unless the session itself is limited") {
  LimitWorld world;
  world.add("other", 1 << 20);
  world.limit("disk", {.iops = 1});
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  const auto other = world.open(*session, "other").answer<wire::OpenResponse>();
  const auto calls = world.reads(*session, 8);
  CHECK(ended(calls) == 1);
  CHECK(ended(world.reads(*session, 50, 512, other.device_id)) == 50);

  const auto setting = std::make_shared<LimitSetting>();
  setting->set({.iops = 10});
  const auto limited = world.session_with("b", world.queues, std::make_shared<Throttle>(setting));
  world.open(*limited, "other", wire::AccessMode::read_only);
  const auto its = world.reads(*limited, 12);
  CHECK(ended(its) == 2);
  world.pass(500ms);
  CHECK(ended(its) == 7);
  world.pass(10s);
  CHECK(ended(calls) == 8);
}

TEST_CASE("limits: both that of the session and that of the export are kept") {
  LimitWorld world;
  world.limit("disk", {.iops = 5});
  const auto setting = std::make_shared<LimitSetting>();
  setting->set({.iops = 50});
  const auto session = world.session_with("a", world.queues, std::make_shared<Throttle>(setting));
  world.open(*session, "disk");
  const auto calls = world.reads(*session, 40);
  world.pass(4s);
  CHECK(ended(calls) >= 20);
  CHECK(ended(calls) <= 22);
  setting->set({.iops = 2});
  world.limit("disk", {});
  const long before = ended(calls);
  world.pass(100ms);  // those that wait at the export have passed the session already
  const long after = ended(calls);
  CHECK(after > before);
  world.pass(20s);
  CHECK(ended(calls) == 40);
}

TEST_CASE("limits: a change counts within a tenth of a second, and old debts are forgotten") {
  LimitWorld world;
  world.limit("disk", {.iops = 1});
  const auto session = world.session_of("a");
  world.open(*session, "disk");
  const auto calls = world.reads(*session, 20);
  world.pass(2s);
  CHECK(ended(calls) == 3);
  world.limit("disk", {.iops = 1000});
  world.pass(120ms);
  CHECK(ended(calls) == 20);
  const auto more = world.reads(*session, 150);
  CHECK(ended(more) < 150);
  world.catalogue.lift_limits();
  world.pass(100ms);
  CHECK(ended(more) == 150);
}

TEST_CASE("limits: a device that is closed waits for no limit") {
  LimitWorld world;
  world.limit("disk", {.iops = 1});
  const auto setting = std::make_shared<LimitSetting>();
  setting->set({.iops = 3});
  for (const bool by_session : {false, true}) {
    const auto session = world.session_with(
        "a", world.queues, by_session ? std::make_shared<Throttle>(setting) : nullptr);
    const auto id = world.open(*session, "disk").answer<wire::OpenResponse>().device_id;
    const auto calls = world.reads(*session, 5, 512, id);
    world.disk().hold = true;
    const Call& close = world.close(*session, id);
    CHECK(close.finished == 1);
    CHECK(ended(calls) == 5);
    CHECK(calls.back()->error == ENOTCONN);
    world.disk().hold = false;
    world.pass(5s);
    CHECK(world.no_timer());
  }
}

TEST_CASE("limits: a turn that comes while its device closes is used by nobody") {
  LimitWorld world;
  world.limit("disk", {.iops = 10});
  int reactor = 0;  // it has an address only
  QueueTable elsewhere{reinterpret_cast<rtrs::Reactor*>(&reactor), world.catalogue, world.services};
  const auto here = world.session_of("here");
  const auto there = world.session_with("there", elsewhere);
  world.open(*here, "disk", wire::AccessMode::read_only);
  world.open(*there, "disk", wire::AccessMode::read_only);
  const auto mine = world.reads(*here, 4);
  const auto its = world.reads(*there, 2);
  CHECK(ended(its) == 0);
  // The timer is here, so the turn is on its way to the other reactor.
  std::erase_if(world.timers, [](const auto& each) { return each.token.expired(); });
  REQUIRE(world.timers.size() == 1);
  auto timer = std::move(world.timers.front());
  world.timers.clear();
  the_time += 200'000'000;
  timer.work();
  REQUIRE(!world.posted.empty());
  const Call& close = world.close(*there, 0);
  CHECK(close.finished == 0);
  world.run_posted();
  CHECK(close.finished == 1);
  CHECK(close.error == 0);
  CHECK(ended(its) == 2);
  for (const Call* call : its) CHECK(call->error == ENOTCONN);
  world.pass(5s);
  CHECK(ended(mine) == 4);
}

}  // namespace throttle_test
