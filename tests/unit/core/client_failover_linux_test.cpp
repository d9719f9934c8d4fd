// SPDX-License-Identifier: BSD-3-Clause
// Fail-over toward servers that cannot tell a request from its repetition.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::client_failover_linux_test {
namespace {

TEST_CASE("fail-over: without generations a renewed session waits for the path of each change") {
  Bench bench{/*once=*/false};
  bench.attach(0);
  TestRequest change, given_up;
  bench.lane.submit(change);
  bench.lane.submit(given_up);
  bench.lane.detach(0);
  bench.lane.cancel(given_up);
  CHECK(bench.lane.lend_permit(0) == 0);
  CHECK_FALSE(bench.lane.lend_permit(1));
  bench.lane.renew();
  CHECK(change.renewals == 1);
  bench.attach(1);  // the server may have the session still, and what came over path 0
  CHECK(bench.posts(1) == 0);
  CHECK(bench.lane.permits().in_use() == 2);
  bench.attach(0);
  CHECK(bench.posts(0) + bench.posts(1) == 3);
  CHECK(bench.lane.permits().in_use() == 1);
}

TEST_CASE("fail-over: without generations the permit of a broken renewal waits for its path") {
  Bench bench{/*once=*/false};
  bench.attach(0);
  bench.lane.detach(0);
  CHECK(bench.lane.lend_permit(0) == 0);  // then path 0 dies: the server may still be at an OPEN
  CHECK(bench.lane.bound(0));
  CHECK(bench.lane.lend_permit(1) == 1);
  CHECK_FALSE(bench.lane.lend_permit(2));
  CHECK(bench.lane.lend_permit(0) == 0);
  bench.lane.renew();
  bench.attach(1);
  CHECK_FALSE(bench.lane.bound(1));
  TestRequest first, second;
  bench.lane.submit(first);
  bench.lane.submit(second);
  REQUIRE(bench.posts(1) == 1);
  CHECK(first.slot == 1);
  bench.attach(0);
  CHECK(bench.posts(0) + bench.posts(1) == 2);
  CHECK(second.slot == 0);
}

TEST_CASE("fail-over to Linux: a change waits for its own path, a read takes another permit") {
  Bench bench{/*once=*/false};
  bench.attach(0);
  bench.attach(1);
  TestRequest change;
  bench.lane.submit(change);
  CHECK(bench.queue_pairs[0].posts[0].header.size() == change.text.size() + 4);
  bench.lane.detach(0);
  CHECK(bench.posts(1) == 0);
  TestRequest read{true};
  bench.lane.submit(read);
  CHECK(bench.posts(1) == 1);
  CHECK(read.slot != change.slot);
  bench.attach(0);
  CHECK(bench.posts(0) == 2);
  CHECK(bench.reply(0, change.slot) == nullptr);
  CHECK(change.calls == 1);
}

TEST_CASE("fail-over to Linux: a change that waited too long fails, and its permit waits on") {
  Unresolved barrier;
  Bench bench{/*once=*/false, &barrier};
  bench.attach(0);
  bench.attach(1);
  TestRequest change, newer, newest, read{true}, base{true}, after;
  bench.lane.submit(change);
  bench.lane.detach(0);
  bench.lane.fail_stranded(1, EIO);
  CHECK(change.calls == 0);
  bench.lane.fail_stranded(0, EIO);
  CHECK(change.calls == 1);
  CHECK(change.error == EIO);
  CHECK(bench.lane.permits().in_use() == 1);
  bench.lane.submit(newer);  // could be answered, and then undone by the older one
  CHECK(newer.calls == 0);
  CHECK(bench.posts(1) == 0);

  barrier.refuse(EIO);
  bench.lane.resume();
  CHECK(newer.error == EIO);
  bench.lane.submit(newest);
  CHECK(newest.error == EIO);
  bench.lane.submit(read);
  CHECK(bench.posts(1) == 1);
  CHECK(bench.reply(1, read.slot, 0, 512) == nullptr);
  CHECK(read.error == 0);
  base.waits_for_scope = true;  // a change builds upon it
  bench.lane.submit(base);
  CHECK(base.error == EIO);

  bench.attach(0);
  CHECK(bench.lane.permits().in_use() == 0);
  CHECK_FALSE(barrier.writes());
  bench.lane.submit(after);
  CHECK(after.calls == 0);
  CHECK(bench.lane.permits().in_use() == 1);
}

TEST_CASE("fail-over to Linux: the permit of a read is not used until the server is done with it") {
  Bench bench{/*once=*/false};
  bench.attach(0);
  bench.attach(1);
  TestRequest read{true}, other;
  bench.lane.submit(read);
  const auto old_slot = read.slot;
  bench.lane.detach(0);
  REQUIRE(bench.posts(1) == 1);
  CHECK(read.slot != old_slot);
  CHECK(bench.reply(1, read.slot, 0, 512) == nullptr);
  CHECK(read.calls == 1);
  CHECK(bench.lane.permits().in_use() == 1);
  bench.lane.submit(other);
  CHECK(other.slot != old_slot);
  bench.attach(0);
  CHECK(bench.posts(0) == 1);
  CHECK(bench.lane.permits().in_use() == 1);
}

TEST_CASE("fail-over to Linux: a change that waits for a permit is refused like any other") {
  Unresolved barrier;
  Bench bench{/*once=*/false, &barrier};
  bench.attach(0);
  bench.attach(1);
  bench.lane.use(0b01, PathPolicy::round_robin);
  std::vector<TestRequest> changes(bench.lane.permits().count() + 1);
  for (TestRequest& change : changes) bench.lane.submit(change);
  bench.lane.detach(0);
  bench.lane.fail_stranded(0, EIO);
  CHECK(changes.front().error == EIO);
  CHECK(changes.back().state == Request::State::waiting);
  barrier.refuse(ENODEV);
  bench.lane.resume();
  CHECK(changes.back().calls == 1);
  CHECK(changes.back().error == ENODEV);
}

TEST_CASE("fail-over to Linux: what opens waits for a close that may come late") {
  Unresolved barrier;
  Bench bench{/*once=*/false, &barrier};
  bench.lane.keep_order();
  bench.attach(0);
  bench.attach(1);
  TestRequest close, open{true}, refused{true};
  bench.lane.submit(close);
  SUBCASE("given up after its path died") {
    bench.lane.detach(0);
    CHECK(barrier.writes());  // it goes again when the path is back
    bench.lane.cancel(close);
  }
  SUBCASE("given up before") {
    bench.lane.cancel(close);
    CHECK(barrier.writes());
    bench.lane.detach(0);
  }
  SUBCASE("waited for") { bench.lane.detach(0); }
  CHECK(barrier.writes());
  bench.lane.submit(open);
  CHECK(bench.posts(1) == 0);

  barrier.refuse(EIO);
  bench.lane.resume();
  CHECK(open.error == EIO);
  bench.lane.submit(refused);
  CHECK(refused.error == EIO);

  const bool goes_again = close.state != Request::State::idle;
  bench.attach(0);
  CHECK(barrier.writes() == goes_again);
  if (goes_again) CHECK(bench.reply(0, close.slot) == nullptr);
  CHECK_FALSE(barrier.writes());
  bench.lane.submit(open);
  CHECK(open.calls == 1);
  CHECK(bench.lane.permits().in_use() == 1);
}

TEST_CASE("fail-over to Linux: what opens waits for the answer to a close that was given up") {
  Unresolved barrier;
  Bench bench{/*once=*/false, &barrier};
  bench.lane.keep_order();
  bench.attach(0);
  TestRequest close, open{true};
  bench.lane.submit(close);
  const auto slot = close.slot;
  bench.lane.cancel(close);
  bench.lane.submit(open);
  CHECK(bench.posts(0) == 1);
  CHECK(bench.reply(0, slot) == nullptr);
  CHECK_FALSE(barrier.writes());
  bench.lane.resume();
  CHECK(bench.posts(0) == 2);
}

/// A lane of I/O and the one that opens and closes.
struct TwoLanes {
  explicit TwoLanes(bool once = false) : io{once, &changes, &opens}, control{once, &opens} {
    control.lane.keep_order();
    for (unsigned path = 0; path < 2; ++path) {
      io.attach(path);
      control.attach(path);
    }
  }
  Unresolved changes, opens;
  Bench io, control;
};

TEST_CASE(
    "fail-over to Linux: what opens waits for a write that was given up, what closes does not") {
  TwoLanes lanes;
  TestRequest write, close, open{true}, other;
  lanes.io.lane.submit(write);
  const auto slot = write.slot;
  lanes.io.lane.cancel(write);
  lanes.control.lane.submit(close);
  REQUIRE(lanes.control.posts(0) == 1);
  CHECK(lanes.control.reply(0, close.slot) == nullptr);
  lanes.control.lane.submit(open);
  CHECK(lanes.control.posts(0) + lanes.control.posts(1) == 1);
  CHECK_FALSE(lanes.changes.writes());
  lanes.io.lane.submit(other);  // other users' I/O goes on
  CHECK(lanes.io.posts(0) + lanes.io.posts(1) == 2);

  SUBCASE("until it is answered") { CHECK(lanes.io.reply(0, slot) == nullptr); }
  SUBCASE("until its path is back") {
    lanes.io.lane.detach(0);
    CHECK(lanes.opens.writes());
    lanes.io.attach(0);
  }
  SUBCASE("or until the session ends") { lanes.io.lane.shut_down(EIO); }
  CHECK_FALSE(lanes.opens.writes());
  lanes.control.lane.resume();
  CHECK(lanes.control.posts(0) + lanes.control.posts(1) == 2);
}

TEST_CASE("fail-over to Linux: what opens waits for a write that failed but may still land") {
  TwoLanes lanes;
  TestRequest write, close, open{true};
  lanes.io.lane.submit(write);
  lanes.io.lane.detach(0);
  lanes.io.lane.fail_stranded(0, EIO);
  CHECK(write.error == EIO);
  lanes.control.lane.submit(close);
  lanes.control.lane.submit(open);
  CHECK(lanes.control.posts(0) + lanes.control.posts(1) == 1);
  lanes.io.attach(0);
  lanes.control.lane.resume();
  CHECK(lanes.control.posts(0) + lanes.control.posts(1) == 2);
}

TEST_CASE("fail-over to Linux: a close passes what is held back") {
  TwoLanes lanes;
  TestRequest write, close, open{true}, another;
  lanes.io.lane.submit(write);
  lanes.io.lane.cancel(write);
  lanes.control.lane.submit(close);
  CHECK(lanes.control.reply(0, close.slot) == nullptr);
  lanes.control.lane.submit(open);
  CHECK(lanes.control.posts(0) == 1);
  lanes.control.lane.submit(another);
  CHECK(lanes.control.posts(0) == 2);
  CHECK(open.calls == 0);
}

TEST_CASE(
    "fail-over to Linux: nothing is closed while a late open could get the number of a late "
    "write") {
  TwoLanes lanes;
  TestRequest write, open{true}, close;
  lanes.control.lane.submit(open);
  lanes.control.lane.detach(0);  // it goes again over the other path
  CHECK(lanes.control.posts(1) == 1);
  CHECK(lanes.control.reply(1, open.slot) == nullptr);
  lanes.io.lane.submit(write);
  lanes.io.lane.cancel(write);
  lanes.control.lane.submit(close);
  CHECK(lanes.control.posts(1) == 1);
  SUBCASE("until the path of the open is back") { lanes.control.attach(0); }
  SUBCASE("until the write has ended") {
    CHECK(lanes.io.reply(0, write.slot) == nullptr);
    lanes.control.lane.resume();
  }
  CHECK(lanes.control.posts(0) + lanes.control.posts(1) == 3);
}

TEST_CASE("fail-over: with generations nothing waits for a write that was given up") {
  TwoLanes lanes{/*once=*/true};
  TestRequest write, open{true};
  lanes.io.lane.submit(write);
  lanes.io.lane.cancel(write);
  lanes.control.lane.submit(open);
  CHECK(lanes.control.posts(0) == 1);
}

TEST_CASE("fail-over: with generations nothing waits for a close that was given up") {
  Unresolved barrier;
  Bench bench{/*once=*/true, &barrier};
  bench.lane.keep_order();
  bench.attach(0);
  bench.attach(1);
  TestRequest close, open{true};
  bench.lane.submit(close);
  bench.lane.cancel(close);
  bench.lane.detach(0);  // its end is asked for elsewhere
  CHECK(bench.posts(1) == 1);
  bench.lane.submit(open);
  CHECK(bench.posts(1) == 2);
}

}  // namespace
}  // namespace rtrs::client_failover_linux_test
