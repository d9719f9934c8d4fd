// SPDX-License-Identifier: BSD-3-Clause
// Counts what the data path takes from the heap.
#include <doctest/doctest.h>

#include <array>

#include "tests/unit/allocations.hpp"
#include "tests/unit/server/fixture.hpp"

using namespace rnbd;
using namespace rnbd::test;

TEST_CASE("data path: no request allocates, not even the first ones of a session") {
  World world;
  world.open(world.session(), "disk");
  world.disk().records.reserve(100);
  world.disk().hold = true;
  // As many as the queue depth; each of them twice, and one takes three steps.
  std::array<Call, 4> calls;
  wire::Io io;
  io.header = wire::header_of(wire::MessageType::io);
  io.length = 512;
  for (std::size_t n = 0; n < calls.size(); ++n) {
    Call& call = calls[n];
    io.sector = n;
    io.rw = n % 2 == 0 ? 0x100 : 0x701;
    const auto bytes = rtrs::wire::bytes_of(io);
    call.message.assign(bytes.begin(), bytes.end());
    call.data = room(512);
    call.request.message = call.message;
    call.request.data = call.data;
    call.request.is_read = n % 2 == 0;
  }
  const std::size_t before = rtrs::test::allocations();
  for (int round = 0; round < 2; ++round) {
    for (Call& call : calls) world.session().on_request(call.request);
    while (!world.disk().held.empty()) world.disk().answer();
  }
  const std::size_t after = rtrs::test::allocations();
  CHECK(after - before == 0);
  for (const Call& call : calls) {
    CHECK(call.finished == 2);
    CHECK(call.error == 0);
  }
}
