// SPDX-License-Identifier: BSD-3-Clause
// The steps of an OPEN, one by one, without a session around them; and which OPENs are copies.
#include <doctest/doctest.h>

#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bridge/server/message_order.hpp"
#include "bridge/server/open_numbers.hpp"
#include "bridge/server/opening_steps.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "bridge/server/session_parts.hpp"
#include "tests/unit/server/fixture.hpp"

namespace opening_test {

using namespace rnbd;
using namespace rnbd::test;
using wire::AccessMode;

namespace {

constexpr wire::Uuid kMine{1};

/// Threads, time and other sessions are the test's.
struct StepsWorld : World {
  struct Job {
    std::function<void()> work, then;
  };

  StepsWorld() {
    const auto queue_up = [this](rtrs::Reactor*, std::function<void()> work,
                                 std::function<void()> then) {
      jobs.push_back({std::move(work), std::move(then)});
    };
    services.on_offload = services.on_record = queue_up;
    services.on_after = [this](rtrs::Reactor*, rtrs::Duration time, std::function<void()> work) {
      auto& timers = time == facts.open_timeout ? limits : waits;
      auto token = std::make_shared<int>();
      timers.emplace_back(token, std::move(work));
      return token;
    };
    services.sessions = &services;
    services.on_reclaim = [this](rtrs::Reactor*, const WriterCount*, const std::string& reason,
                                 std::function<void()> then) {
      reasons.push_back(reason);
      asked.push_back(std::move(then));
    };
    facts.name = "vm1";
    facts.peer = "10.0.0.5:40312";
    facts.uuid = kMine;
  }

  std::shared_ptr<Opening> begin(AccessMode mode = AccessMode::read_write,
                                 OpenKind kind = OpenKind::anew, std::uint32_t number = 1) {
    return std::make_shared<Opening>(call.request, number, wire::OpenRequest{mode, 0, "disk"}, kind,
                                     parts);
  }
  template <class T, class Then>
  static Routine await(Task<T> task, Then then) {
    then(co_await std::move(task));
  }
  void end(Opening& opening, int error) {
    steps.end(opening, [&] { errors.push_back(error); });
  }
  /// Awaits work, and ends the opening if nothing comes of it.
  void work(Opening& opening, OpenStep step, std::function<void()> job, unsigned& judged) {
    opening.routine = await(steps.work(opening, step, "line", std::move(job)),
                            [this, &opening, &judged](const tl::expected<void, Failure>& done) {
                              done ? void(++judged) : end(opening, done.error().error);
                            });
  }
  void work_for_a_moment(Opening& opening, std::function<void()> job, unsigned& judged) {
    opening.routine =
        await(steps.work_for_a_moment(opening, OpenStep::renewing, "line", std::move(job)),
              [&judged](bool in_time) { judged += in_time ? 1U : 0U; });
  }
  /// False: there is nobody to ask.
  bool make_room(Opening& opening, unsigned& again) {
    const auto refused = std::make_shared<bool>(false);
    opening.routine = await(steps.make_room(opening, nullptr),
                            [this, &opening, &again, refused](OpeningSteps::Room room) {
                              *refused = room == OpeningSteps::Room::none;
                              if (room == OpeningSteps::Room::made) ++again;
                              if (room == OpeningSteps::Room::late)
                                end(opening, OpeningSteps::too_late(opening).error);
                            });
    return !*refused;
  }
  void reserve(Opening& opening, Lease wanted) {
    opening.routine =
        await(steps.reserve(opening, std::move(wanted)), [this, &opening](Opening::Result result) {
          const int error = result ? 0 : result.error().error;
          if (result) leases.push_back(std::move(*result));
          end(opening, error);
        });
  }
  Lease lease(AccessMode mode = AccessMode::read_write) {
    auto found = catalogue.open_named("disk", mode);
    REQUIRE(found.has_value());
    return std::move(*found);
  }
  /// Runs a timer, or what another session has to answer.
  static void fire(std::vector<std::pair<std::weak_ptr<void>, std::function<void()>>>& timers) {
    for (auto& [token, work] : std::exchange(timers, {})) {
      if (!token.expired()) work();
    }
  }
  void answer_idle() {
    for (auto& then : std::exchange(asked, {})) then();
  }
  void run_job() {
    REQUIRE(!jobs.empty());
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    if (job.work) job.work();
    if (job.then) job.then();
  }
  void run_jobs() {
    while (!jobs.empty()) run_job();
  }
  /// A message waits behind a reservation.
  bool holds() {
    const std::size_t before = handled;
    order.take(held.request, wire::MessageType::close);
    return handled == before;
  }

  std::deque<Job> jobs;
  std::vector<std::pair<std::weak_ptr<void>, std::function<void()>>> limits, waits;
  std::vector<std::string> reasons;
  std::vector<std::function<void()>> asked;
  std::vector<int> errors;
  std::vector<Lease> leases;
  std::size_t handled = 0;
  Call call, held;

  SessionFacts facts;
  SessionLog session_log{facts, services};
  OpenTable devices;
  OpenNumbers numbers;
  MessageOrder order{[this](rtrs::ServerRequest&, wire::MessageType) { ++handled; }};
  IoRequests io{facts, devices, services, nullptr, session_log, [](Device&) {}};
  const SessionParts parts{facts,  devices,  numbers,     order, catalogue,
                           queues, services, session_log, io};
  OpeningSteps steps{parts};
};

}  // namespace

TEST_CASE("opening: an end has no next step, and each step leads to an end") {
  for (const OpenStep first : kOpenSteps) {
    CAPTURE(static_cast<int>(first));
    std::set<OpenStep> reached{first};
    for (std::size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const OpenTransition& row : kOpenTransitions) {
        if (reached.contains(row.from)) reached.insert(row.to);
      }
    }
    CHECK(reached.contains(OpenStep::late) == (first != OpenStep::over));
    if (is_end(first)) CHECK(reached.size() == 1);
  }
}

TEST_CASE("opening: while a thread looks at a disk its time is limited, and nobody waits for it") {
  StepsWorld world;
  const auto opening = world.begin();
  unsigned worked = 0, judged = 0;
  OpenStep step = OpenStep::finding;
  SUBCASE("for a file") {}
  SUBCASE("for an export") { step = OpenStep::renewing; }
  const auto look = [&] {
    world.work(
        *opening, step, [&] { ++worked; }, judged);
  };
  look();
  CHECK(opening->step() == step);
  CHECK(world.limits.size() == 1);
  CHECK_FALSE(world.holds());
  SUBCASE("in time") {
    world.run_jobs();
    CHECK(opening->step() == OpenStep::judging);
    CHECK(worked == 1);
    CHECK(judged == 1);
    look();
    CHECK(world.limits.size() == 1);
    CHECK(world.errors.empty());
  }
  SUBCASE("late before it began") {
    StepsWorld::fire(world.limits);
    CHECK(opening->step() == OpenStep::late);
    CHECK(world.errors == std::vector{EAGAIN});
    world.run_jobs();
    CHECK(worked == 0);
    CHECK(judged == 0);
    CHECK(world.errors.size() == 1);
  }
  SUBCASE("another one hangs there") {
    StepsWorld::fire(world.limits);
    const auto next = world.begin();
    world.work(
        *next, step, [&] { ++worked; }, judged);
    CHECK(next->step() == OpenStep::over);
    CHECK(world.errors == std::vector{EAGAIN, EAGAIN});
    CHECK(next->timer == nullptr);
  }
}

TEST_CASE("opening: work that is not needed is waited for only a moment") {
  StepsWorld world;
  const auto opening = world.begin();
  unsigned worked = 0, judged = 0;
  const auto look = [&](const std::shared_ptr<Opening>& it) {
    world.work_for_a_moment(
        *it, [&] { ++worked; }, judged);
  };
  look(opening);
  CHECK(opening->step() == OpenStep::renewing);
  CHECK(world.limits.size() == 1);
  SUBCASE("in time") {
    world.run_jobs();
    CHECK(worked == 1);
    CHECK(judged == 1);
    StepsWorld::fire(world.waits);
  }
  SUBCASE("it hangs, and the next one does not wait for it") {
    StepsWorld::fire(world.waits);
    CHECK(judged == 1);
    const auto next = world.begin();
    look(next);
    CHECK(judged == 2);
    CHECK(next->step() == OpenStep::judging);
    world.run_jobs();
    CHECK(worked == 1);
    CHECK(judged == 2);
    const auto last = world.begin();
    look(last);
    world.run_jobs();
    CHECK(worked == 2);
    CHECK(judged == 3);
  }
  CHECK(opening->step() == OpenStep::judging);
  CHECK(world.errors.empty());
}

TEST_CASE("opening: what a thread cannot do for want of something is refused with its errno") {
  StepsWorld world;
  std::function<void()> fails;
  int error = 0;
  SUBCASE("memory") {
    fails = [] { throw std::bad_alloc{}; };
    error = ENOMEM;
  }
  SUBCASE("descriptors") {
    fails = [] { throw std::system_error{EMFILE, std::system_category()}; };
    error = EMFILE;
  }
  SUBCASE("anything else") {
    fails = [] { throw std::runtime_error{"odd"}; };
    error = EIO;
  }
  const auto opening = world.begin();
  unsigned judged = 0;
  world.work(*opening, OpenStep::finding, fails, judged);
  world.run_jobs();
  CHECK(opening->step() == OpenStep::over);
  CHECK(judged == 0);
  CHECK(world.errors == std::vector{error});
  // The next one finds the line free.
  const auto next = world.begin();
  world.work(
      *next, OpenStep::finding, [] {}, judged);
  world.run_jobs();
  CHECK(judged == 1);
}

TEST_CASE("opening: idle writers are ended, then a leaver is awaited, in turn and not for ever") {
  StepsWorld world;
  const auto opening = world.begin();
  unsigned again = 0;
  const auto ask = [&] { return world.make_room(*opening, again); };
  REQUIRE(ask());
  CHECK(opening->step() == OpenStep::making_room);
  CHECK(world.asked.size() == 1);
  CHECK(world.reasons.front() ==
        "'vm1' (10.0.0.5:40312) wants to write to 'disk', which it has open");
  CHECK_FALSE(world.holds());
  world.answer_idle();
  CHECK(opening->step() == OpenStep::judging);
  CHECK(again == 1);

  REQUIRE(ask());
  CHECK(opening->step() == OpenStep::making_room);
  CHECK(world.asked.empty());
  CHECK(world.waits.size() == 1);
  StepsWorld::fire(world.waits);
  CHECK(opening->step() == OpenStep::judging);
  CHECK(again == 2);

  unsigned rounds = 2;
  while (ask()) {
    ++rounds;
    world.answer_idle();
    StepsWorld::fire(world.waits);
    REQUIRE(again == rounds);
    REQUIRE(rounds < 100);
  }
  CHECK(opening->step() == OpenStep::judging);
  CHECK(rounds == 41);  // 20 waits, and a look at idle sessions around each
}

TEST_CASE("opening: a client that comes again asks nobody to make room") {
  StepsWorld world;
  const auto opening = world.begin(AccessMode::read_write, OpenKind::again);
  unsigned again = 0;
  CHECK_FALSE(world.make_room(*opening, again));
  CHECK(opening->step() == OpenStep::judging);
}

TEST_CASE("opening: room that comes too late is left to others") {
  StepsWorld world;
  const auto opening = world.begin();
  unsigned judged = 0, again = 0;
  world.work(
      *opening, OpenStep::finding, [] {}, judged);
  world.run_jobs();
  REQUIRE(world.make_room(*opening, again));
  StepsWorld::fire(world.limits);
  CHECK(opening->step() == OpenStep::late);
  CHECK(world.errors == std::vector{EAGAIN});
  world.answer_idle();
  CHECK(again == 0);
  CHECK(world.errors.size() == 1);
}

TEST_CASE("opening: a reader needs no reservation, and a writer has one before it is answered") {
  StepsWorld world;
  SUBCASE("a reader") {
    const auto opening = world.begin(AccessMode::read_only);
    world.reserve(*opening, world.lease(AccessMode::read_only));
    CHECK(opening->step() == OpenStep::over);
    CHECK(world.jobs.empty());
    CHECK(world.errors == std::vector{0});
  }
  SUBCASE("a writer") {
    const auto opening = world.begin();
    world.reserve(*opening, world.lease());
    CHECK(opening->step() == OpenStep::recording);
    CHECK(world.holds());
    CHECK(world.limits.size() == 1);
    world.run_jobs();
    CHECK(opening->step() == OpenStep::over);
    CHECK(world.handled == 1);
    CHECK(world.errors == std::vector{0});
    CHECK(world.catalogue.reservations().writer_serial(world.leases.front()) != 0);
  }
  SUBCASE("a writer whose OPEN is settled meanwhile") {
    const auto opening = world.begin();
    world.numbers.settle(2);
    world.reserve(*opening, world.lease());
    CHECK(opening->step() == OpenStep::over);
    CHECK(world.errors == std::vector{ECANCELED});
    CHECK_FALSE(world.holds());
  }
}

TEST_CASE("opening: a reservation that comes too late is given back, and the next ones go on") {
  StepsWorld world;
  const auto opening = world.begin();
  world.reserve(*opening, world.lease());
  REQUIRE(world.holds());
  SUBCASE("before it is recorded") {
    StepsWorld::fire(world.limits);
    world.run_jobs();
  }
  SUBCASE("while it is recorded") {
    const StepsWorld::Job job = std::move(world.jobs.front());
    world.jobs.pop_front();
    job.work();
    StepsWorld::fire(world.limits);
    job.then();
    world.run_jobs();
  }
  CHECK(opening->step() == OpenStep::late);
  CHECK(world.errors == std::vector{EAGAIN});
  CHECK(world.handled == 1);
  CHECK_FALSE(opening->lease.has_value());
  CHECK_FALSE(world.catalogue.writers("disk")->anybody());
}

TEST_CASE("opening: while the state directory hangs a reservation is refused at once") {
  StepsWorld world;
  world.add("other", 4096);
  const auto first = world.begin();
  world.reserve(*first, world.lease());
  StepsWorld::fire(world.limits);
  REQUIRE(world.errors == std::vector{EAGAIN});
  CHECK(world.steps.may_be_its_own(EPERM));
  CHECK_FALSE(world.steps.may_be_its_own(EROFS));
  const auto next = world.begin();
  auto other = world.catalogue.open_named("other", AccessMode::read_write);
  REQUIRE(other.has_value());
  world.reserve(*next, std::move(*other));
  CHECK(next->step() == OpenStep::over);
  CHECK_FALSE(next->lease.has_value());
  CHECK_FALSE(world.catalogue.writers("other")->anybody());
  CHECK(world.errors == std::vector{EAGAIN, EAGAIN});
  CHECK_FALSE(world.holds());
}

TEST_CASE("opening: a machine that migrates joins the writers after the idle ones are ended") {
  StepsWorld world;
  const auto opening = world.begin(AccessMode::migration);
  world.reserve(*opening, world.lease(AccessMode::migration));
  CHECK(opening->step() == OpenStep::joining);
  CHECK(world.asked.size() == 1);
  REQUIRE(world.holds());
  SUBCASE("in time") {
    world.answer_idle();
    CHECK(opening->step() == OpenStep::recording);
    world.run_jobs();
    CHECK(opening->step() == OpenStep::over);
    CHECK(world.errors == std::vector{0});
  }
  SUBCASE("late") {
    StepsWorld::fire(world.limits);
    CHECK(opening->step() == OpenStep::late);
    CHECK(world.errors == std::vector{EAGAIN});
    world.answer_idle();
    world.run_jobs();
    CHECK_FALSE(world.catalogue.writers("disk")->anybody());
  }
  CHECK(world.handled == 1);
}

TEST_CASE("numbers: an OPEN that is settled, refused or closed is a copy; others are not") {
  OpenNumbers numbers;
  CHECK(numbers.verdict(5, "a") == 0);
  numbers.refuse(5, EROFS);
  CHECK(numbers.verdict(5, "a") == EROFS);
  CHECK(numbers.verdict(6, "a") == 0);
  numbers.close("a", 7);
  CHECK(numbers.verdict(6, "a") == ECANCELED);
  CHECK(numbers.verdict(7, "a") == ECANCELED);
  CHECK(numbers.verdict(8, "a") == 0);
  CHECK(numbers.verdict(7, "b") == 0);
  numbers.settle(8);
  CHECK(numbers.verdict(7, "b") == ECANCELED);
  CHECK(numbers.verdict(8, "a") == 0);
  numbers.settle(3);
  CHECK(numbers.verdict(7, "b") == ECANCELED);
}

TEST_CASE("numbers: OPENs without a number have no copies") {
  OpenNumbers numbers;
  numbers.settle(10);
  numbers.refuse(0, EROFS);
  numbers.close("a", 0);
  CHECK(numbers.verdict(0, "a") == 0);
}

TEST_CASE("numbers: a client that settles nothing takes limited memory") {
  OpenNumbers numbers;
  for (std::uint32_t n = 1; n <= OpenNumbers::kMaxRefused + 1; ++n) {
    numbers.refuse(n, EROFS);
    numbers.close(std::to_string(n), n);
  }
  CHECK(numbers.verdict(OpenNumbers::kMaxRefused, "x") == EROFS);
  CHECK(numbers.verdict(OpenNumbers::kMaxRefused + 1, "x") == 0);
  CHECK(numbers.verdict(1024, "1024") == ECANCELED);
  CHECK(numbers.verdict(1025, "1025") == 0);
}

TEST_CASE("order: messages behind a reservation keep their order, also behind the next one") {
  std::vector<int> handled;
  std::vector<Call> calls(4);
  MessageOrder* self = nullptr;
  MessageOrder order{[&](rtrs::ServerRequest& request, wire::MessageType type) {
    handled.push_back(static_cast<int>(reinterpret_cast<Call*>(&request) - calls.data()));
    if (type == wire::MessageType::open) self->begin_reservation(nullptr);
    // One that is refused at once begins and ends within its turn.
    if (type == wire::MessageType::claim) {
      self->begin_reservation(nullptr);
      self->end_reservation(nullptr, [] {});
    }
  }};
  self = &order;
  order.take(calls[0].request, wire::MessageType::open);
  order.take(calls[1].request, wire::MessageType::claim);
  order.take(calls[2].request, wire::MessageType::open);
  order.take(calls[3].request, wire::MessageType::close);
  CHECK(handled == std::vector{0});
  order.end_reservation(nullptr, [&] { handled.push_back(-1); });
  CHECK(handled == std::vector{0, -1, 1, 2});
  order.end_reservation(nullptr, [] {});
  CHECK(handled == std::vector{0, -1, 1, 2, 3});
}

TEST_CASE("order: CLAIMs of several storages go together, and nothing else does") {
  std::vector<int> handled;
  std::vector<Call> calls(7);
  const int disks[2] = {};
  const auto number_of = [&](const rtrs::ServerRequest& request) {
    return static_cast<int>(reinterpret_cast<const Call*>(&request) - calls.data());
  };
  const auto disk_of = [&](const rtrs::ServerRequest& request) -> const void* {
    return &disks[number_of(request) % 2];
  };
  MessageOrder* self = nullptr;
  MessageOrder order{[&](rtrs::ServerRequest& request, wire::MessageType type) {
                       handled.push_back(number_of(request));
                       if (type == wire::MessageType::claim)
                         self->begin_reservation(disk_of(request));
                     },
                     [&](const rtrs::ServerRequest& request, wire::MessageType type) {
                       return type == wire::MessageType::claim ? disk_of(request) : nullptr;
                     }};
  self = &order;
  order.take(calls[0].request, wire::MessageType::claim);
  order.take(calls[1].request, wire::MessageType::claim);
  CHECK(handled == std::vector{0, 1});
  // Of the first disk again, and what comes behind that.
  order.take(calls[2].request, wire::MessageType::claim);
  order.take(calls[3].request, wire::MessageType::claim);
  order.end_reservation(&disks[1], [] {});
  CHECK(handled == std::vector{0, 1});
  order.end_reservation(&disks[0], [] {});
  CHECK(handled == std::vector{0, 1, 2, 3});
  order.take(calls[4].request, wire::MessageType::close);
  order.end_reservation(&disks[0], [] {});
  CHECK(handled == std::vector{0, 1, 2, 3});
  order.end_reservation(&disks[1], [] {});
  CHECK(handled == std::vector{0, 1, 2, 3, 4});
}

}  // namespace opening_test
