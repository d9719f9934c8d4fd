// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/requests.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

namespace requests_test {

using namespace rnbd::nbd;

namespace {

struct Fixture {
  explicit Fixture(std::size_t shared = 0) : budget{shared} {}
  BufferPool buffers;
  Budget budget;
  Requests requests{nullptr, buffers, budget};
};

}  // namespace

TEST_CASE("requests: memory of one that has ended is used again") {
  Fixture fixture;
  std::set<Request*> seen;
  for (int i = 0; i < 3; ++i) {
    Request& one = fixture.requests.take();
    Request& two = fixture.requests.take();
    CHECK(&one != &two);
    CHECK(one.job.context == &one);
    CHECK(fixture.requests.in_flight() == 2);
    seen.insert({&one, &two});
    fixture.requests.give_back(one);
    fixture.requests.give_back(two);
  }
  CHECK(seen.size() == 2);
  CHECK(fixture.requests.all().size() == 2);
  CHECK(fixture.requests.in_flight() == 0);
}

TEST_CASE("requests: their number is limited, and the end of one makes room") {
  Fixture fixture;
  std::vector<Request*> taken;
  while (fixture.requests.has_room() && taken.size() < 1000) {
    taken.push_back(&fixture.requests.take());
  }
  CHECK(taken.size() == 256);
  fixture.requests.give_back(*taken.back());
  CHECK(fixture.requests.has_room());
}

TEST_CASE("requests: without shared memory one goes at a time, beyond what is the connection's") {
  Fixture fixture;
  Request& large = fixture.requests.take();
  REQUIRE(fixture.requests.take_buffer(large, 4 * 1024 * 1024));
  CHECK(fixture.budget.spent());
  CHECK_FALSE(fixture.requests.has_room());
  fixture.requests.give_back(large);
  CHECK(fixture.requests.has_room());
  CHECK(fixture.budget.used() == 0);
}

TEST_CASE("requests: a client is single after some in a row, until it sends two at a time") {
  Fixture fixture;
  unsigned rounds = 0;
  bool single = false;
  while (!single && rounds < 100) {
    Request& request = fixture.requests.take();
    single = fixture.requests.is_single();
    fixture.requests.give_back(request);
    ++rounds;
  }
  CHECK(rounds == 16);
  Request& one = fixture.requests.take();
  CHECK(fixture.requests.is_single());
  Request& two = fixture.requests.take();
  CHECK_FALSE(fixture.requests.is_single());
  fixture.requests.give_back(two);
  CHECK_FALSE(fixture.requests.is_single());
  fixture.requests.give_back(one);
  fixture.requests.take();
  CHECK_FALSE(fixture.requests.is_single());
}

TEST_CASE("requests: only commands that change something, and run, are changing") {
  Fixture fixture;
  Request& request = fixture.requests.take();
  request.command = Command::write;
  using State = Request::State;
  for (const State state : {State::arriving, State::waiting, State::answered}) {
    request.state = state;
    CHECK_FALSE(fixture.requests.are_changing());
  }
  for (const State state : {State::on_lane, State::blocking}) {
    request.state = state;
    for (const Command command : {Command::write, Command::trim, Command::write_zeroes}) {
      request.command = command;
      CHECK(fixture.requests.are_changing());
    }
    for (const Command command : {Command::read, Command::flush, Command::cache}) {
      request.command = command;
      CHECK_FALSE(fixture.requests.are_changing());
    }
  }
}

}  // namespace requests_test
