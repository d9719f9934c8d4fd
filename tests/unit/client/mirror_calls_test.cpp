// SPDX-License-Identifier: BSD-3-Clause
// A mirror's requests, the commands of its threads, and its own copies.
#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bridge/client/mirror/background_copies.hpp"
#include "bridge/client/mirror/call_table.hpp"
#include "tests/unit/client/device_world.hpp"

namespace mirror_calls_test {

using namespace rnbd::mirror;
using namespace std::chrono_literals;
using rnbd::wire::IoOperation;
using Clock = std::chrono::steady_clock;

namespace {

struct Host final : GroupHost {
  void send(const Command& /*command*/) override {}
  void drop(unsigned /*member*/) override {}
  void attached() override {}
  void done(std::uint64_t /*operation*/) override {}
  void failed(std::uint64_t /*operation*/, int /*error*/) override {}
  MemberSet same(std::uint64_t /*operation*/, MemberSet members, unsigned /*source*/) override {
    return members;
  }
  void differs(const Difference& /*found*/) override {}
  void grown() override {}
  void not_grown(unsigned /*member*/, int /*error*/) override {}
  void dissolved(int /*error*/) override {}
  bool may_copy(unsigned /*under_way*/) override { return true; }
  bool has_requests() override { return false; }
  MemberSet leased() override { return 0; }
  bool leases_ended() override { return true; }
  void over() override {}
  void superseded() override {}
};

/// A member's lane that answers as the test wants.
class Loop final : public rtrs::LaneLoop {
 public:
  struct Known {
    std::vector<Job*> started;
    Job* ended = nullptr;
    int cancelled = 0;
    int open = 0;
  };

  explicit Loop(Known& known) : known_{known} { ++known_.open; }
  ~Loop() override { --known_.open; }
  void start(Job& job) override { known_.started.push_back(&job); }
  void flush() override {}
  std::size_t watch(std::vector<pollfd>& /*descriptors*/) override { return 0; }
  bool progress(std::span<const pollfd> /*polled*/) override { return false; }
  bool await(rtrs::OneCall* /*call*/) override { return false; }
  Job* collect() override { return std::exchange(known_.ended, nullptr); }
  bool cancel(Job& /*job*/) override { return ++known_.cancelled != 0; }
  unsigned permits() const override { return 8; }

 private:
  Known& known_;
};

/// A user who notes its answer.
struct User final : CallUser {
  void answered(Call& /*call*/, int its_error) override {
    ++answers;
    error = its_error;
  }
  int answers = 0;
  int error = -1;
};

/// A table whose members have a command of each operation for which out() was called.
struct Calls {
  Call& make(IoOperation operation) {
    Call& call = table.make(users.emplace_back(), sender);
    call.transfer = {.operation = operation, .length = data.size()};
    if (operation == IoOperation::write) call.transfer.from = data.data();
    return call;
  }
  /// Returns its user.
  User& add(Call& call, Group* live = nullptr) {
    table.add(call, live);
    return users.back();
  }
  User& add(IoOperation operation) { return add(make(operation)); }
  Call& call(std::uint64_t number) { return *table.find(number); }
  /// A command of that operation that is on its way.
  TaskPtr out(std::uint64_t number) {
    auto task = std::make_unique<Task>();
    task->call = &call(number);
    task->call->use.began();
    return task;
  }

  Host host;
  Group group{{}, host};  ///< its state does not matter here
  TaskSender steward{~0U, 0};
  TaskSender sender{0, 0};
  std::vector<std::uint64_t> forced;  ///< operations whose members were lost
  CallTable table{steward, [this](std::uint64_t operation) { forced.push_back(operation); }};
  std::deque<User> users;
  std::vector<std::byte> data{512, std::byte{7}};
};

Command own(Order order, std::uint64_t operation, unsigned member = 0) {
  return {.order = order, .member = member, .range = {8, 16}, .operation = operation};
}

}  // namespace

TEST_CASE("call table: an answer ends one call, and the others wait") {
  Calls calls;
  const User& first = calls.add(IoOperation::read);
  const User& second = calls.add(IoOperation::flush);
  CHECK_FALSE(calls.table.is_flush(1));
  CHECK(calls.table.is_flush(2));
  calls.table.end(1, EIO);
  calls.table.end(1, 0);
  CHECK(first.answers == 1);
  CHECK(first.error == EIO);
  CHECK(second.answers == 0);
  CHECK_FALSE(calls.table.empty());
  calls.table.end(2, 0);
  CHECK(calls.table.empty());
}

TEST_CASE("call table: a call that is refused ends at once, and its memory is used again") {
  Calls calls;
  Call& call = calls.make(IoOperation::read);
  calls.table.refuse(call, EIO);
  CHECK(calls.users.back().error == EIO);
  CHECK(&calls.make(IoOperation::write) == &call);
}

TEST_CASE("call table: calls that a member refused end with the group, the others go on") {
  Calls calls;
  const User& refused = calls.add(IoOperation::write);
  const User& other = calls.add(IoOperation::write);
  calls.table.note_failure(1, ENOSPC);
  calls.table.note_failure(7, ENOSPC);  // there is none
  CHECK(refused.answers == 0);
  calls.table.end_failed();
  CHECK(refused.error == ENOSPC);
  CHECK(other.answers == 0);
}

TEST_CASE("call table: a user has no answer while a lost member's command uses its memory") {
  Calls calls;
  const User& user = calls.add(IoOperation::read);
  const TaskPtr late = calls.out(1);
  const TaskPtr answered = calls.out(1);
  calls.table.collected(*answered);
  calls.table.end(1, 0);
  CHECK(calls.table.empty());
  CHECK(user.answers == 0);
  calls.table.collected(*late);
  CHECK(user.answers == 1);
  CHECK(user.error == 0);
  calls.table.collected(*late);  // it counts once
  CHECK(user.answers == 1);
}

TEST_CASE("call table: a user who leaves waits while a member uses its memory, but not for ever") {
  Calls calls;
  const User& user = calls.add(IoOperation::write);
  Call& call = calls.call(1);
  const TaskPtr task = calls.out(1);
  calls.table.cancel(call, &calls.group);
  CHECK(user.answers == 0);
  calls.table.let_go(Clock::now() + 1s);
  CHECK(calls.forced.empty());
  calls.table.let_go(Clock::now() + 10s);
  CHECK(calls.forced == std::vector<std::uint64_t>{1});
  CHECK(user.answers == 0);
  calls.table.collected(*task);
  CHECK(user.error == EINTR);
  // The group still finishes its orders, with a copy of the data, which the steward carries.
  CHECK_FALSE(calls.table.empty());
  CHECK(call.sender == &calls.steward);
  CHECK(call.transfer.from != calls.data.data());
  CHECK(*call.transfer.from == std::byte{7});
  calls.table.let_go(Clock::now() + 10s);
  CHECK(calls.forced.size() == 1);
  calls.table.end(1, 0);
  CHECK(user.answers == 1);
  CHECK(calls.table.empty());
}

TEST_CASE("call table: a user who leaves while zeroes are written is waited for by nobody") {
  Calls calls;
  calls.table.set_zeroing({.fast = true, .size = 1024, .piece = 256});
  const User& user = calls.add(calls.make(IoOperation::write_zeroes), &calls.group);
  const TaskPtr task = calls.out(1);
  calls.table.cancel(calls.call(1), &calls.group);
  CHECK(user.error == EINTR);
  calls.table.let_go(Clock::now() + 10s);
  CHECK(calls.forced.empty());
  CHECK_FALSE(calls.table.empty());
  calls.table.collected(*task);
  calls.table.end(1, 0);  // the next piece does not begin
  calls.table.submit_due(&calls.group);
  CHECK(calls.table.empty());
  CHECK(user.answers == 1);
}

TEST_CASE("call table: a call that the loss of a member ends keeps its answer") {
  Calls calls;
  const User& user = calls.add(IoOperation::write);
  const TaskPtr task = calls.out(1);
  calls.table.cancel(calls.call(1), &calls.group);
  calls.table.end(1, 0);
  CHECK(user.answers == 0);
  calls.table.collected(*task);
  CHECK(user.answers == 1);
  CHECK(user.error == 0);
  CHECK(calls.table.empty());
}

TEST_CASE("call table: without a live group all calls end at once") {
  Calls calls;
  const User& left = calls.add(IoOperation::write);
  const User& ended = calls.add(IoOperation::write);
  calls.table.cancel(calls.call(1), nullptr);
  CHECK(left.error == EINTR);
  calls.table.cancel_all(ETIMEDOUT, nullptr);
  CHECK(left.answers == 1);
  CHECK(ended.error == ETIMEDOUT);
  CHECK(calls.forced.empty());
  CHECK(calls.table.empty());
}

TEST_CASE("call table: calls that are held end at once, also while the group is live") {
  Calls calls;
  const auto hold = [&]() -> const User& {
    calls.table.hold(calls.make(IoOperation::write));
    return calls.users.back();
  };
  const User& under_way = calls.add(IoOperation::flush);
  const User& left = hold();
  const User& refused = hold();
  CHECK_FALSE(calls.table.all_held());
  calls.table.cancel(calls.call(2), &calls.group);
  CHECK(left.error == EINTR);
  calls.table.refuse_held(EIO);
  CHECK(refused.error == EIO);
  CHECK(under_way.answers == 0);
  calls.table.end(1, 0);
  CHECK(calls.table.all_held());
  CHECK(calls.table.empty());
}

TEST_CASE("call table: the call of a cancelled job ends, and none when the job has ended") {
  Calls calls;
  rtrs::LaneLoop::Job job;
  const User& user = calls.add(IoOperation::flush);
  calls.table.cancel(job, nullptr);
  CHECK(user.answers == 0);
  calls.call(1).job = &job;
  calls.table.cancel(job, nullptr);
  CHECK(user.error == EINTR);
}

TEST_CASE("call table: a trim zeroes the whole blocks within it fast, and piece by piece") {
  Calls calls;
  calls.table.set_zeroing({.fast = true, .granule = 4096, .size = 40000, .piece = 8192});
  Call& call = calls.make(IoOperation::discard);
  call.transfer = {.operation = IoOperation::discard, .offset = 512, .length = 20480};
  const User& user = calls.add(call, &calls.group);
  Task task;
  const auto piece = [&](std::uint64_t number) {
    CallTable::lend(calls.call(number), Order::zero, task);
    return std::pair{task.transfer.offset, task.transfer.length};
  };
  CHECK(piece(1) == std::pair<std::uint64_t, std::uint64_t>{4096, 4096});
  CHECK(task.transfer.operation == IoOperation::write_zeroes);
  CHECK(task.transfer.fast);
  CallTable::lend(call, Order::write, task);
  CHECK_FALSE(task.transfer.fast);
  calls.table.end(1, 0);
  CHECK(user.answers == 0);
  SUBCASE("to its end") {
    calls.table.submit_due(&calls.group);
    CHECK(piece(2) == std::pair<std::uint64_t, std::uint64_t>{8192, 8192});
    calls.table.end(2, 0);
    calls.table.submit_due(&calls.group);
    CHECK(piece(3) == std::pair<std::uint64_t, std::uint64_t>{16384, 4096});
    calls.table.end(3, 0);
    CHECK(user.error == 0);
  }
  SUBCASE("until one fails") {
    calls.table.submit_due(&calls.group);
    calls.table.end(2, EIO);
    CHECK(user.error == EIO);
  }
  SUBCASE("until its user leaves") {
    calls.table.cancel(call, &calls.group);
    calls.table.submit_due(&calls.group);
    CHECK(user.error == EINTR);
  }
  CHECK(user.answers == 1);
  CHECK(calls.table.empty());
}

TEST_CASE("call table: what is zeroed at once has 64 MiB, or one region") {
  CHECK(zeroing_piece(20) == 64U << 20);
  CHECK(zeroing_piece(25) == 64U << 20);
  CHECK(zeroing_piece(28) == 256U << 20);
}

TEST_CASE("call table: a question for extents has a bound of its own, and one answer") {
  Calls calls;
  calls.table.set_zeroing({.size = 65536, .piece = 4096, .question = 16384});
  WaitingUser user;
  Call& call = calls.table.make(user, calls.sender);
  call.transfer = {.offset = 8192, .length = 20480};
  call.asks = true;
  calls.table.add(call, &calls.group);
  CHECK(call.transfer.length == 8192);
  calls.table.told(1, std::vector<rnbd::wire::Extent>(3));
  calls.table.end(1, 0);
  CHECK(user.ended);
  CHECK(user.error == 0);
  CHECK(user.extents.size() == 3);
}

TEST_CASE("call table: of extents, users get the part that they have asked for") {
  std::vector<rnbd::wire::Extent> told(3);
  told[0].length = 100;
  told[1].length = 1000;
  told[1].flags = rnbd::wire::kExtentZero;
  told[2].length = 436;
  const auto lengths = [&](std::uint64_t skipped, std::uint64_t length) {
    std::vector<std::uint64_t> all;
    for (const auto& extent : asked_part(told, skipped, length)) all.push_back(extent.length);
    return all;
  };
  using Lengths = std::vector<std::uint64_t>;
  CHECK(lengths(0, 1536) == Lengths{100, 1000, 436});
  CHECK(lengths(40, 1000) == Lengths{60, 940});
  CHECK(lengths(100, 1001) == Lengths{1000, 1});
  CHECK(asked_part(told, 100, 10)[0].flags == rnbd::wire::kExtentZero);
  CHECK(lengths(1536, 10).empty());
}

TEST_CASE("call table: a trim has no effect where it is slow, or holds no whole block") {
  Calls calls;
  const auto trimmed = [&](const Zeroing& zeroing, std::uint64_t length) {
    calls.table.set_zeroing(zeroing);
    Call& call = calls.make(IoOperation::discard);
    call.transfer = {.operation = IoOperation::discard, .offset = 512, .length = length};
    return calls.add(call, &calls.group).answers != 0;
  };
  CHECK(trimmed({.fast = false}, 8192));
  CHECK(trimmed({.fast = true, .granule = 4096}, 4096));
  CHECK_FALSE(trimmed({.fast = true, .granule = 4096, .size = 5120}, 4608));  // the end
  CHECK_FALSE(trimmed({.fast = true}, 8192));
  calls.table.zeroed_slowly(4);
  CHECK(trimmed({.fast = true}, 8192));
}

TEST_CASE("member lane: commands of an ended session count no more, and are given back") {
  MemberSession session;
  session.begin(std::make_shared<OpenMember>());
  MemberLane lane;
  const auto start = Clock::now();
  const auto add = [&](std::uint64_t operation, Clock::time_point began) {
    auto task = std::make_unique<Task>();
    task->operation = operation;
    task->epoch = session.epoch();
    task->began = began;
    lane.add(std::move(task));
  };
  CHECK_FALSE(lane.is_used());
  add(1, start - 2s);
  add(2, start - 3s);
  CHECK(lane.is_used());
  CHECK(lane.holds(1, session));
  CHECK_FALSE(lane.holds(3, session));
  CHECK(lane.oldest(session, start) == start - 3s);
  std::vector<TaskPtr> gone;
  lane.part(session, gone);
  CHECK(gone.empty());
  session.end();
  CHECK(lane.oldest(session, start) == start);
  session.begin(std::make_shared<OpenMember>());
  CHECK_FALSE(lane.holds(1, session));
  add(3, start - 1s);  // the thread has not had its turn yet
  lane.part(session, gone);
  REQUIRE(gone.size() == 2);
  CHECK(lane.holds(3, session));
  CHECK(lane.oldest(session, start) == start - 1s);
  SUBCASE("a thread that ends leaves to the steward what it has not sent") {
    lane.give_up_unsent(gone);
    REQUIRE(gone.size() == 3);
    CHECK(gone.back()->operation == 3);
    CHECK_FALSE(lane.is_used());
  }
  SUBCASE("and so are those of the next session") {
    session.end();
    lane.part(session, gone);
    CHECK(gone.size() == 3);
    CHECK_FALSE(lane.is_used());
  }
}

TEST_CASE("member lane: what was sent when its thread ends stays, and is sent once") {
  Loop::Known known;
  rnbd::test::DeviceWorld world{rnbd::test::kSmall, [&](rnbd::test::FakeClient& client) {
                                  client.take_loop = [&] { return std::make_unique<Loop>(known); };
                                }};
  MemberLink link{{}, {}, {}, {}};
  auto open = std::make_shared<OpenMember>();
  open->link = &link;
  open->session = world.session;
  open->device = std::move(world.device);
  MemberSession session;
  session.begin(std::move(open));
  MemberLane lane;
  const auto add = [&](std::uint64_t operation) {
    auto task = std::make_unique<Task>();
    task->operation = operation;
    task->epoch = session.epoch();
    task->order = Order::zero;
    task->transfer = {.operation = IoOperation::write_zeroes, .length = 4096};
    lane.add(std::move(task));
  };
  add(1);
  lane.prepare(session);
  lane.send(0);
  REQUIRE(known.started.size() == 1);
  add(2);
  std::vector<TaskPtr> unsent;
  lane.give_up_unsent(unsent);
  REQUIRE(unsent.size() == 1);
  CHECK(unsent.front()->operation == 2);
  CHECK(lane.holds(1, session));
  lane.let_go_if_idle();
  CHECK(lane.is_used());
  CHECK(known.open == 1);
  CHECK_FALSE(lane.collect());
  known.ended = known.started.front();
  CHECK(lane.collect());
  std::vector<Task*> ended;
  lane.take_ended(ended);
  REQUIRE(ended.size() == 1);
  CHECK(lane.take(*ended.front())->operation == 1);
  lane.let_go_if_idle();
  CHECK_FALSE(lane.is_used());
  CHECK(known.open == 0);
  CHECK(known.started.size() == 1);
  CHECK(known.cancelled == 0);
}

TEST_CASE("task sender: a thread is woken once until its next turn, and not in one") {
  TaskSender sender{0, 2};
  const auto woken = [&] {
    std::vector<pollfd> polled;
    sender.watch(polled);
    ::poll(polled.data(), polled.size(), 0);
    return sender.progress(polled);
  };
  CHECK_FALSE(woken());
  sender.call_up();
  sender.call_up();
  CHECK(woken());
  CHECK_FALSE(woken());
  sender.call_up();  // that turn is still to come
  CHECK_FALSE(woken());
  sender.begin_turn();
  sender.call_up();
  sender.end_turn();
  CHECK_FALSE(woken());
  sender.call_up();
  CHECK(woken());
}

TEST_CASE("member session: without a path a member is lost after a second, or sooner with one") {
  MemberSession session;
  const auto start = Clock::now();
  CHECK_FALSE(session.is_lost(start, start));
  session.begin(std::make_shared<OpenMember>());
  CHECK_FALSE(session.is_lost(start - 1h, start));  // slow storage is no loss
  session.note({.has_path = false});
  CHECK_FALSE(session.is_lost(start, start));
  CHECK_FALSE(session.is_lost(start - 2s, start + 50ms));
  CHECK(session.is_lost(start - 2s, start + 100ms));
  CHECK_FALSE(session.is_lost(start + 100ms, start + 900ms));
  CHECK(session.is_lost(start + 900ms, start + 1s));
  session.note({});
  CHECK_FALSE(session.is_lost(start, start + 2s));
  session.note({.has_path = false});
  CHECK_FALSE(session.is_lost(start + 2s, start + 2s));  // counted anew
  session.note({.lost_device = true});
  CHECK(session.is_lost(start + 2s, start + 2s));
  session.note({.alive = false});
  CHECK(session.is_lost(start + 2s, start + 2s));
  session.end();
  CHECK_FALSE(session.is_lost(start, start + 9s));
}

TEST_CASE("background copies: they pause three times as long as they took while requests come") {
  BackgroundCopies copies{0};
  const auto start = Clock::now();
  const auto run = [&](bool waiting, Clock::duration took) {
    Command command = own(Order::read, Group::kOwn);
    command.range = {0, 2048};
    copies.begin(command, start);
    command.order = Order::write;
    copies.begin(command, start + took / 2);
    copies.done(Group::kOwn, waiting, start + took);
    return copies.paused_until();
  };
  CHECK_FALSE(run(false, 10ms));
  REQUIRE(run(true, 10ms));
  CHECK(*copies.paused_until() == start + 40ms);
  CHECK_FALSE(copies.resume(start + 39ms));
  CHECK(copies.resume(start + 40ms));
  CHECK_FALSE(copies.resume(start + 40ms));
  copies.requested(start);
  CHECK(run(false, 10ms));
  CHECK(copies.resume(start + 1s));
  CHECK_FALSE(run(false, 100ms));
  copies.done(Group::kOwn, true, start + 1s);  // ended before
  CHECK_FALSE(copies.paused_until());
}

TEST_CASE("background copies: while requests come, units go in a row of 1 MiB") {
  BackgroundCopies copies{0};
  const auto start = Clock::now();
  const auto run = [&](Order order, std::uint64_t sectors, bool waiting) {
    Command command = own(order, Group::kOwn);
    command.range = {0, sectors};
    copies.begin(command, start);
    copies.done(Group::kOwn, waiting, start + 10ms);
    return copies.paused_until().has_value();
  };
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run(Order::read, 512, true));
  CHECK(run(Order::read, 512, true));
  CHECK(*copies.paused_until() == start + 10ms + 85ms);  // 8 MiB a second at least
  REQUIRE(copies.resume(start + 1s));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run(Order::read, 8, true));  // small ones count as units
  CHECK(run(Order::read, 8, true));
  REQUIRE(copies.resume(start + 1s));
  CHECK(run(Order::clear, 65536, true));  // many regions are locked
  CHECK(*copies.paused_until() == start + 40ms);
  REQUIRE(copies.resume(start + 1s));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run(Order::read, 512, true));
  CHECK_FALSE(run(Order::read, 512, false));  // the row ends where nobody waits
  CHECK_FALSE(run(Order::read, 512, true));
}

TEST_CASE(
    "background copies: they keep a floor, and get half of the time where that is too little") {
  BackgroundCopies copies{0};
  const auto start = Clock::now();
  const auto pause_behind = [&](Clock::duration took, Order order = Order::read,
                                std::uint64_t sectors = 2048) {
    Command command = own(order, Group::kOwn);
    command.range = {0, sectors};
    copies.begin(command, start);
    copies.done(Group::kOwn, true, start + took);
    const auto pause = copies.paused_until().value_or(start + took) - (start + took);
    copies.resume(start + 1h);
    return pause;
  };
  pause_behind(200us, Order::extents);  // this moves nothing, and says nothing of a copy's time
  for (int i = 0; i < 4; ++i) pause_behind(50us, Order::read, 8);  // nor do 80 MiB a second
  CHECK(pause_behind(20ms) == 60ms);
  CHECK(pause_behind(100ms) == 25ms);
  CHECK(pause_behind(200ms) == 0ms);
  copies.set_stalled(true);
  CHECK(pause_behind(20ms) == 20ms);
  copies.set_stalled(false);
  CHECK(pause_behind(1ms) == 3ms);   // 1,000 MiB a second
  CHECK(pause_behind(20ms) == 0ms);  // 50 are a twentieth of that
  CHECK(pause_behind(10ms) == 10ms);
  copies.clear();
  CHECK(pause_behind(20ms) == 60ms);
}

TEST_CASE("background copies: a rate makes them pause without requests, too") {
  BackgroundCopies copies{8 * 512 * 10};  // ten of these in a second
  const auto start = Clock::now();
  copies.begin(own(Order::read, Group::kOwn), start);
  copies.done(Group::kOwn, false, start + 30ms);
  REQUIRE(copies.paused_until());
  CHECK(*copies.paused_until() == start + 100ms);
  // Members that come back, a comparison and a repair have one rate together.
  REQUIRE(copies.resume(start + 100ms));
  for (const std::uint64_t id : {Group::kOwn, Group::kOwn + 1})
    copies.begin(own(Order::read, id), start + 100ms);
  for (const std::uint64_t id : {Group::kOwn, Group::kOwn + 1})
    copies.done(id, false, start + 130ms);
  CHECK(*copies.paused_until() == start + 300ms);
}

TEST_CASE("background copies: several are under way only while nobody waits and no rate is kept") {
  const auto now = Clock::now();
  BackgroundCopies copies{0};
  CHECK(copies.may_begin(3, false, now));
  CHECK_FALSE(copies.may_begin(4, false, now));
  CHECK_FALSE(copies.may_begin(1, true, now));
  CHECK(copies.may_begin(0, true, now));
  copies.requested(now);
  CHECK_FALSE(copies.may_begin(1, false, now));
  BackgroundCopies slow{8 * 512 * 10};
  CHECK_FALSE(slow.may_begin(1, false, now));
  slow.begin(own(Order::extents, Group::kOwn), now);
  slow.begin(own(Order::clear, Group::kOwn), now);
  slow.done(Group::kOwn, false, now + 1ms);
  CHECK(slow.may_begin(0, false, now));  // zeroes move nothing
}

TEST_CASE("background copies: a copy writes the memory that its read filled, zeroes as such") {
  BackgroundCopies copies{0};
  Task read;
  copies.begin(own(Order::read, Group::kOwn), {});
  copies.lend(own(Order::read, Group::kOwn), 512, read);
  CHECK(read.transfer.operation == IoOperation::read);
  CHECK(read.transfer.offset == 8 * 512);
  REQUIRE(read.transfer.length == 8 * 512);
  Task copy;
  copies.lend(own(Order::copy, Group::kOwn, 1), 512, copy);
  CHECK(copy.transfer.operation == IoOperation::write_zeroes);
  CHECK(copy.transfer.copy);
  read.transfer.into[5] = std::byte{1};
  copies.lend(own(Order::write, Group::kOwn, 1), 512, copy);
  CHECK(copy.transfer.operation == IoOperation::write);
  CHECK(copy.transfer.from == read.transfer.into);
  CHECK_FALSE(copy.transfer.copy);
  copies.clear();
  CHECK(copy.transfer.from[5] == std::byte{1});  // the task keeps it
}

TEST_CASE("background copies: of members that were read, one gets only what differs") {
  BackgroundCopies copies{0};
  const Range range{8, 8 + 64};
  const auto command = [&](Order order, unsigned member) {
    return Command{
        .order = order, .member = member, .range = range, .operation = Group::kOwn, .source = 0};
  };
  std::array<Task, 3> reads;
  copies.begin(command(Order::read, 0), {});
  for (unsigned i = 0; i < 3; ++i) copies.lend(command(Order::read, i), 512, reads[i]);
  CHECK(copies.same(Group::kOwn, 0b111, 1) == 0b111);
  reads[0].transfer.into[20000] = reads[0].transfer.into[20001] = std::byte{1};
  reads[1].transfer.into[20000] = std::byte{1};
  CHECK(copies.same(Group::kOwn, 0b111, 0) == 0b001);
  CHECK(copies.same(Group::kOwn, 0b110, 2) == 0b100);
  Task write;
  copies.lend(command(Order::write, 1), 512, write);
  CHECK(write.transfer.operation == IoOperation::write);
  CHECK(write.transfer.offset == 8 * 512 + 16384);
  CHECK(write.transfer.length == 4096);
  CHECK(write.transfer.from == reads[0].transfer.into + 16384);
  copies.lend(command(Order::write, 1), 16384, write);  // whole blocks of its disk
  CHECK(write.transfer.offset == 8 * 512 + 16384);
  CHECK(write.transfer.length == 16384);
  copies.forget(1);
  copies.lend(command(Order::write, 1), 512, write);
  CHECK(write.transfer.length == 64 * 512);
}

}  // namespace mirror_calls_test
