// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/server/fixture.hpp"

namespace close_test {

using namespace rnbd;
using namespace rnbd::test;

TEST_CASE("close: an id that is not open is accepted, in either direction") {
  World world;
  CHECK(world.close(world.session(), 0).error == 0);
  CHECK(world.close(world.session(), UINT32_MAX).error == 0);
  wire::Close message;
  message.header = wire::header_of(wire::MessageType::close);
  Call& call = world.send(world.session(), message, true, room(16));
  CHECK(call.error == 0);
  CHECK(call.data == std::vector<std::byte>(16));
}

TEST_CASE("close: answered only after the device's running requests, which keep their answers") {
  World world;
  world.add("other", 4096);
  world.open(world.session(), "disk");
  world.open(world.session(), "other");
  world.disk().hold = true;
  Call& first = world.io(world.session(), 0, 0, 512, true, 512);
  Call& second = world.io(world.session(), 1, 0, 512, false, 512);
  Call& close = world.close(world.session(), 0);
  CHECK(close.finished == 0);

  // Meanwhile the device takes nothing more, and the others work.
  CHECK(world.io(world.session(), 0, 0, 512, true, 512).error == ENOTCONN);
  CHECK(world.io(world.session(), 0, 0, 512, true, 512, 1).error == 0);

  world.disk().answer();
  CHECK(first.error == 0);
  CHECK(close.finished == 0);
  world.disk().answer(ENOSPC);
  CHECK(second.error == ENOSPC);
  CHECK(close.finished == 1);
  CHECK(close.error == 0);
  CHECK(world.session().devices().size() == 1);
}

TEST_CASE("close: a second close of a closing device waits as well") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  world.io(world.session(), 0, 0, 512, true, 512);
  Call& first = world.close(world.session(), 0);
  Call& second = world.close(world.session(), 0);
  CHECK(second.finished == 0);
  world.disk().answer();
  CHECK(first.finished == 1);
  CHECK(second.finished == 1);
}

TEST_CASE("close: until it is done the id stays taken and the right to write stays with it") {
  World world;
  world.add("other", 4096);
  world.open(world.session(), "disk");
  world.disk().hold = true;
  world.io(world.session(), 1, 0, 512, false, 512);
  world.close(world.session(), 0);
  CHECK(world.open(world.session(), "other").answer<wire::OpenResponse>().device_id == 1);
  CHECK(world.open(world.session(), "disk").error == EPERM);
  world.disk().answer();
  Call& again = world.open(world.session(), "disk");
  CHECK(again.error == 0);
  CHECK(again.answer<wire::OpenResponse>().device_id == OpenTable::kMaxDevices);
}

TEST_CASE("close: on request the next device gets the id at once, as from Linux's server") {
  World world;
  world.add("other", 4096);
  auto session = world.make_session("linux", /*extensions=*/false, DeviceIds::lowest_free);
  CHECK(world.open(*session, "disk").answer<wire::OpenResponse>().device_id == 0);
  CHECK(world.close(*session, 0).error == 0);
  CHECK(world.open(*session, "other").answer<wire::OpenResponse>().device_id == 0);
  CHECK(world.close(*session, 0).finished == 1);
  CHECK(session->devices().size() == 0);
}

TEST_CASE("close: the session may end inside the answer") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  world.io(world.session(), 0, 0, 512, true, 512);
  Call& close = world.close(world.session(), 0);
  close.on_finish = [&] { world.end_session(); };
  world.disk().answer();
  CHECK(close.finished == 1);
}

}  // namespace close_test
